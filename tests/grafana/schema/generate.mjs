// Writes each dashboard as a typed literal, for only in literals does TypeScript find fields that no type knows.
//   node generate.mjs FOLDER_OF_DASHBOARDS_OR_RESOURCES
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';

const folder = process.argv[2];
const names = readdirSync(folder).filter((name) => name.endsWith('.json'));
if (names.length === 0) {
  throw new Error(`there is no dashboard in ${folder}`);
}
mkdirSync('generated', { recursive: true });
for (const name of names) {
  const dashboard = JSON.parse(readFileSync(join(folder, name), 'utf8'));
  const text = dashboard.apiVersion ? typedResource(dashboard) : typed(dashboard);
  writeFileSync(join('generated', `${basename(name, '.json')}.ts`), text);
}

function typed(dashboard) {
  const panels = dashboard.panels.flatMap((panel) => (panel.type === 'row' ? panel.panels : [panel]));
  return [
    "import type { Dashboard12, Dashboard13, FieldConfigs, Options, Target } from '../shapes';",
    `export const dashboard12: Dashboard12 = ${literal(dashboard)};`,
    `export const dashboard13: Dashboard13 = ${literal(dashboard)};`,
    ...panels.flatMap((panel) => [
      `export const options${panel.id}: Options[${literal(panel.type)}] = ${literal(panel.options)};`,
      `export const fields${panel.id}: FieldConfigs[${literal(panel.type)}] = ` +
        `${literal(panel.fieldConfig.defaults.custom ?? {})};`,
      `export const targets${panel.id}: Target[] = ${literal(panel.targets)};`,
    ]),
    '',
  ].join('\n');
}

function typedResource(resource) {
  return [
    "import type { Resource12, Resource13 } from '../shapes';",
    `export const resource12: Resource12 = ${literal(resource)};`,
    `export const resource13: Resource13 = ${literal(resource)};`,
    '',
  ].join('\n');
}

function literal(value) {
  return JSON.stringify(value, null, 2);
}
