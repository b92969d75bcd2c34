// Grafana's own types, as their values look in JSON.
import type { Dashboard as DashboardOf10, GraphFieldConfig, TableFieldOptions } from '@grafana/schema';
import type { Options as BarGaugeOptions } from '@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen';
import type {
  FieldConfig as HeatmapFieldConfig,
  Options as HeatmapOptions,
} from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type { PrometheusDataQuery } from '@grafana/schema/dist/esm/raw/composable/prometheus/dataquery/x/PrometheusDataQuery_types.gen';
import type { Options as StatOptions } from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type { Options as TableOptions } from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type { Options as TimeSeriesOptions } from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';
import type { Dashboard as DashboardOf12, VariableModel } from 'grafana-schema-12';

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

// The older type of variables lacks most of their fields; the newer has neither their id nor a theme, and does not mind.
interface Templating {
  list?: (Json<VariableModel> & { id: string })[];
}
export type Dashboard = Omit<Json<DashboardOf10>, 'templating'> & { templating: Templating };
export type Dashboard12 = Omit<Json<DashboardOf12>, 'templating'> & { templating: Templating; style: 'dark' };
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
