// Grafana's own types, as their values look in JSON.
import type { Dashboard as DashboardOf13, GraphFieldConfig, TableFieldOptions, VariableModel as VariableOf13 } from '@grafana/schema';
import type { Spec as SpecOf13 } from '@grafana/schema/apis/dashboard.grafana.app/v2beta1';
import type { Options as BarGaugeOptions } from '@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen';
import type {
  FieldConfig as HeatmapFieldConfig,
  Options as HeatmapOptions,
} from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type { PrometheusDataQuery } from 'grafana-schema-10/dist/esm/raw/composable/prometheus/dataquery/x/PrometheusDataQuery_types.gen';
import type { Options as StatOptions } from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type { Options as TableOptions } from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type { Options as TimeSeriesOptions } from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';
import type { Dashboard as DashboardOf12, VariableModel as VariableOf12 } from 'grafana-schema-12';
import type { Spec as SpecOf12 } from 'grafana-schema-12/dist/types/schema/dashboard/v2beta1/types.spec.gen.d.ts';

// JSON has an enum's values, and null for the minus infinity of a first threshold.
type Json<T> = T extends string
  ? `${T}`
  : T extends number | boolean | null | undefined
    ? T
    : T extends (infer Item)[]
      ? Json<Item>[]
      : T extends { color: string; value: number | null }
        ? { color: string; value: number | null }
        : T extends object
          ? { [Key in keyof T]: Json<T[Key]> }
          : T;

// A list of variables has any kinds of them, which only their own type tells apart.
type Typed<Document, Variable> = Omit<Json<Document>, 'templating'> & { templating: { list?: Json<Variable>[] } };
export type Dashboard12 = Typed<DashboardOf12, VariableOf12>;
export type Dashboard13 = Typed<DashboardOf13, VariableOf13>;

// Version 2 of the schema, as a resource of Grafana's API.
interface Resource<Spec> {
  apiVersion: 'dashboard.grafana.app/v2beta1';
  kind: 'Dashboard';
  metadata: { name: string };
  spec: Json<Spec>;
}
export type Resource12 = Resource<SpecOf12>;
export type Resource13 = Resource<SpecOf13>;

export type Target = Json<PrometheusDataQuery>;

// A panel takes its defaults for what is not said.
export interface Options {
  bargauge: Partial<Json<BarGaugeOptions>>;
  heatmap: Partial<Json<HeatmapOptions>>;
  stat: Partial<Json<StatOptions>>;
  table: Partial<Json<TableOptions>>;
  timeseries: Partial<Json<TimeSeriesOptions>>;
}

export interface FieldConfigs {
  bargauge: Record<string, never>;
  heatmap: Partial<Json<HeatmapFieldConfig>>;
  stat: Record<string, never>;
  table: Partial<Json<TableFieldOptions>>;
  timeseries: Partial<Json<GraphFieldConfig>>;
}
