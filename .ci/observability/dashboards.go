package observability

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Dashboard is a Grafana dashboard. Each row has two panels.
type Dashboard struct {
	// Name is the file's name and the dashboard's uid.
	Name, Title, Description string
	// Variables are labels for which the viewer selects values.
	Variables []Variable
	Panels    []Panel
}

// Variable is a label of a metric.
type Variable struct{ Label, Metric string }

// Panel is a graph over time.
type Panel struct {
	Title, Description string
	// Unit is one of Grafana's units, for example short, s, percentunit, reqps or bytes.
	Unit    string
	Queries []Query
}

// Query is a PromQL query and the legend of its series.
type Query struct{ Expr, Legend string }

func graph(title, unit, description string, queries ...Query) Panel {
	return Panel{Title: title, Unit: unit, Description: description, Queries: queries}
}

// by returns a query for the rate of a counter, summed by labels.
func by(labels, metric, selector, legend string) Query {
	return Query{fmt.Sprintf("sum by (%s) (rate(%s%s[$__rate_interval]))", labels, metric, selector), legend}
}

// quantile returns a query for a quantile of a histogram.
func quantile(q, labels, metric, selector, legend string) Query {
	if labels != "" {
		labels += ", "
	}
	return Query{fmt.Sprintf("histogram_quantile(%s, sum by (%sle) (rate(%s_bucket%s[$__rate_interval])))", q, labels, metric, selector), legend}
}

const ofApp = `{app=~"$app"}`

// dashboards are the dashboards of deployments/observability/dashboards.
var dashboards = []Dashboard{
	{
		Name: "windlass-fleet", Title: "Windlass / Fleet", Description: "All regions: connected agents, running instances, and what is missing.",
		Panels: []Panel{
			graph("Regions by status", "short", "Instances of unreachable regions continue to run.", Query{"max by (status) (windlass_regions)", "{{status}}"}),
			graph("Regions that became unreachable", "short", "", Query{"sum(increase(windlass_region_leases_expired_total[$__rate_interval]))", "regions"}),
			graph("Instances by status", "short", "", Query{"max by (status) (deployment_instances_by_status{region=\"\"})", "{{status}}"}),
			graph("Assignments by status", "short", "A deployment in a region is an assignment.", Query{"max by (status) (deployment_topology_status)", "{{status}}"}),
			graph("Starts and ends of instances", "short", "", by("region", "deployment_instance_starts_total", "", "starts {{region}}"), by("region, reason", "deployment_instance_ends_total", "", "{{reason}} {{region}}")),
			graph("Time to ready, p95", "s", "From the start of an instance to its first ready.", quantile("0.95", "region", "deployment_instance_startup_time_seconds", "", "{{region}}")),
			graph("Agents connected", "short", "One agent of a region is active. The other agents stand by.", Query{"max by (region) (windlass_agent_connected)", "{{region}}"}),
			graph("Failed health checks", "short", "", by("region", "deployment_health_checks_total", `{result="fail"}`, "{{region}}")),
			graph("Certificates: days until they expire", "d", "", Query{"min by (instance, flag) (windlass_certificate_not_after_seconds - time()) / 86400", "{{instance}} {{flag}}"}),
			graph("Kubernetes: reverted drift", "short", "Objects that another program or a person changed.", by("region, kind", "windlass_agent_kubernetes_drift_total", "", "{{region}} {{kind}}")),
		},
	},
	{
		Name: "windlass-app", Title: "Windlass / App", Description: "Requests of one app, by version. The analysis of a canary reads the same metrics.",
		Variables: []Variable{{"app", "windlass_gateway_requests_total"}},
		Panels: []Panel{
			graph("Requests by version", "reqps", "", by("version", "windlass_gateway_requests_total", ofApp, "v{{version}}")),
			graph("Requests by code", "reqps", "499: the client disconnected before the answer.", by("code", "windlass_gateway_requests_total", ofApp, "{{code}}")),
			graph("Share of 5xx by version", "percentunit", "", Query{
				"sum by (version) (rate(windlass_gateway_requests_total{app=~\"$app\", code=~\"5..\"}[$__rate_interval])) / sum by (version) (rate(windlass_gateway_requests_total" + ofApp + "[$__rate_interval]))", "v{{version}}",
			}),
			graph("Duration by version", "s", "", quantile("0.5", "version", "windlass_gateway_request_seconds", ofApp, "v{{version}} p50"), quantile("0.99", "version", "windlass_gateway_request_seconds", ofApp, "v{{version}} p99")),
			graph("Time to the first token, p95", "s", "Only for streamed answers.", quantile("0.95", "version", "windlass_gateway_first_token_seconds", ofApp, "v{{version}}")),
			graph("Tokens", "short", "", by("kind", "windlass_gateway_tokens_total", ofApp, "{{kind}}")),
			graph("Under way and waiting", "short", "", Query{"sum by (version) (windlass_gateway_in_flight" + ofApp + ")", "v{{version}} under way"}, Query{"sum(windlass_gateway_queue" + ofApp + ")", "waiting"}),
			graph("Failures caused by the gateway", "reqps", "", by("reason", "windlass_gateway_failures_total", ofApp, "{{reason}}")),
			graph("Retries and requests that another region answered", "reqps", "", by("app", "windlass_gateway_retries_total", ofApp, "retries {{app}}"), by("region, why", "windlass_gateway_handed_over_total", ofApp, "{{why}} to {{region}}")),
			graph("Error budget spent, 30 days at this rate", "percentunit", "0.1 % of answers may be 5xx.", Query{"windlass:gateway_error_ratio:rate1h" + ofApp + " / 0.001", "{{app}} 1h"}, Query{"windlass:gateway_error_ratio:rate3d" + ofApp + " / 0.001", "{{app}} 3d"}),
			graph("Requests held for an app at zero", "short", "The requests wait for the app to start.", Query{"sum by (app) (windlass_gateway_held" + ofApp + ")", "{{app}}"}),
			graph("Start from zero, p95", "s", "From the first waiting request until a request gets an instance.", quantile("0.95", "app", "windlass_gateway_cold_start_seconds", ofApp, "{{app}}")),
		},
	},
	{
		Name: "windlass-rollouts", Title: "Windlass / Rollouts", Description: "Rollouts in flight, their results, and the time of their checks.",
		Panels: []Panel{
			graph("In flight", "short", "", Query{"max(windlass_rollouts_in_flight)", "rollouts"}),
			graph("Age of the oldest rollout", "s", "The rollout may wait for an approval, a freeze, a region or capacity.", Query{"max(windlass_rollout_oldest_seconds)", "oldest"}),
			graph("Ends by status", "short", "", by("status", "deployment_workflow_status", "", "{{status}}")),
			graph("Duration", "s", "", quantile("0.5", "", "deployment_workflow_duration_seconds", "", "p50"), quantile("0.95", "", "deployment_workflow_duration_seconds", "", "p95")),
			graph("Steps", "s", "", quantile("0.5", "", "deployment_workflow_step_duration_seconds", "", "p50"), quantile("0.99", "", "deployment_workflow_step_duration_seconds", "", "p99")),
			graph("Longest overdue step", "s", "If it is more than a minute, Restate is down or cannot reach the control plane.", Query{"max(windlass_rollout_step_overdue_seconds)", "overdue"}),
			graph("Queries of checks", "s", "", quantile("0.95", "outcome", "windlass_analysis_query_duration_seconds", "", "{{outcome}}")),
			graph("Webhooks of checks", "s", "", quantile("0.95", "outcome", "windlass_analysis_webhook_duration_seconds", "", "{{outcome}}")),
			graph("Calls that change apps", "reqps", "", by("operation, outcome", "deployment_operations_total", "", "{{operation}} {{outcome}}")),
			graph("Lookups of image digests, p95", "s", "", quantile("0.95", "", "deployment_build_duration_seconds", "", "p95")),
		},
	},
	{
		Name: "windlass-controlplane", Title: "Windlass / Control plane", Description: "Replicas, database, feed and reports.",
		Panels: []Panel{
			graph("Calls by code", "reqps", "", by("code", "rpc_server_requests_total", `{procedure=~"/windlass[.]v1[.].*"}`, "{{code}}")),
			graph("Slowest procedures, p99", "s", "", Query{"topk(10, histogram_quantile(0.99, sum by (procedure, le) (rate(rpc_server_request_duration_seconds_bucket[$__rate_interval]))))", "{{procedure}}"}),
			graph("Transactions, p99", "s", "Retries included.", quantile("0.99", "kind", "windlass_store_transaction_seconds", "", "{{kind}}")),
			graph("Retried transactions", "short", "", by("reason", "windlass_store_transaction_retries_total", "", "{{reason}}")),
			graph("Statements", "short", "", Query{"topk(10, sum by (query) (rate(windlass_store_queries_total[$__rate_interval])))", "{{query}}"}),
			graph("Streams of agents and watchers", "short", "", Query{"sum by (instance) (windlass_watch_streams)", "agents {{instance}}"}, Query{"sum by (instance) (windlass_app_watchers)", "WatchApp {{instance}}"}),
			graph("Instances whose logs are followed", "short", "", Query{"sum by (instance) (windlass_log_instances)", "{{instance}}"}),
			graph("Logs from agents", "Bps", "", Query{"sum by (instance) (rate(windlass_log_bytes_total[$__rate_interval]))", "{{instance}}"}),
			graph("Omitted log lines", "short", "", Query{"sum by (cause) (rate(windlass_log_lines_lost_total[$__rate_interval]))", "{{cause}}"}),
			graph("Lag of agents in revisions, p99", "short", "", Query{"windlass:feed_lag_revisions:p99_5m", "p99"}),
			graph("Frames and snapshots", "short", "", by("kind", "windlass_feed_frames_total", "", "{{kind}}"), by("cause", "windlass_feed_snapshots_total", "", "snapshot {{cause}}")),
			graph("Reports: delay and duration", "s", "", Query{"max(windlass_report_delay_seconds)", "delay"}, quantile("0.99", "", "windlass_report_duration_seconds", "", "p99")),
			graph("Reports refused", "short", "", by("why", "windlass_report_refused_total", "", "{{why}}")),
			graph("Refused: limits and budgets", "short", "", by("limit", "windlass_admission_refusals_total", "", "{{limit}}"), by("budget", "rpc_server_budget_refusals_total", "", "memory {{budget}}")),
			graph("Connections", "short", "", Query{"sum by (listener) (windlass_connections)", "{{listener}}"}, by("listener", "windlass_connections_refused_total", "", "refused {{listener}}")),
			graph("TLS handshakes that wait and were refused", "short", "", Query{"sum by (listener) (windlass_handshakes_waiting)", "{{listener}}"}, by("reason", "windlass_handshakes_refused_total", "", "refused {{reason}}")),
		},
	},
	{
		Name: "windlass-gateway", Title: "Windlass / Gateways", Description: "The data plane, with all apps together.",
		Panels: []Panel{
			graph("Requests by gateway", "reqps", "", by("instance", "windlass_gateway_requests_total", "", "{{instance}}")),
			graph("Requests by code", "reqps", "", by("code", "windlass_gateway_requests_total", "", "{{code}}")),
			graph("Failures caused by gateways", "reqps", "", by("reason", "windlass_gateway_failures_total", "", "{{reason}}")),
			graph("Duration, p99 of the ten slowest apps", "s", "", Query{"topk(10, windlass:gateway_request_seconds:p99_5m)", "{{app}}"}),
			graph("Connections of clients", "short", "", Query{"sum by (instance) (windlass_gateway_connections)", "{{instance}}"}),
			graph("Connections refused and closed", "short", "", by("instance", "windlass_gateway_connections_refused_total", "", "refused {{instance}}"), by("instance", "windlass_gateway_connections_shed_total", "", "closed {{instance}}")),
			graph("TLS handshakes that wait and were refused", "short", "", Query{"sum by (instance) (windlass_gateway_handshakes_waiting)", "{{instance}}"}, by("reason", "windlass_gateway_handshakes_refused_total", "", "refused {{reason}}")),
			graph("Ejections", "short", "Instances that failed requests and were taken out of routing for some time.", by("instance", "windlass_gateway_ejections_total", "", "{{instance}}")),
			graph("Routes", "short", "", Query{"max by (instance) (windlass_gateway_routes)", "{{instance}}"}),
			graph("Waiting requests", "short", "", Query{"topk(10, sum by (app) (windlass_gateway_queue))", "{{app}}"}),
			graph("Other regions that can be reached", "short", "", Query{"min by (instance) (windlass_gateway_regions_reached)", "{{instance}}"}),
		},
	},
}

// object is a JSON object of Grafana.
type object = map[string]any

// renderJSON returns the JSON of a dashboard, for an import into Grafana.
func renderJSON(d Dashboard) ([]byte, error) {
	source := object{"type": "prometheus", "uid": "${datasource}"}
	variables := []object{{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}}
	for _, v := range d.Variables {
		query := fmt.Sprintf("label_values(%s, %s)", v.Metric, v.Label)
		variables = append(variables, object{
			"name": v.Label, "type": "query", "datasource": source, "query": query, "definition": query,
			"refresh": 2, "sort": 1, "multi": true, "includeAll": true, "allValue": ".*",
			"current": object{"text": "All", "value": "$__all"},
		})
	}
	var panels []object
	for i, p := range d.Panels {
		var targets []object
		for j, q := range p.Queries {
			targets = append(targets, object{
				"refId": string(rune('A' + j)), "datasource": source, "expr": q.Expr, "legendFormat": q.Legend,
			})
		}
		panels = append(panels, object{
			"id": i + 1, "type": "timeseries", "title": p.Title, "description": p.Description, "datasource": source,
			"gridPos": object{"x": i % 2 * 12, "y": i / 2 * 8, "w": 12, "h": 8},
			"fieldConfig": object{
				"defaults":  object{"unit": p.Unit, "min": 0, "custom": object{"fillOpacity": 10, "showPoints": "never"}},
				"overrides": []object{},
			},
			"options": object{
				"legend":  object{"displayMode": "list", "placement": "bottom"},
				"tooltip": object{"mode": "multi", "sort": "desc"},
			},
			"targets": targets,
		})
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	err := enc.Encode(object{
		"uid": d.Name, "title": d.Title, "description": d.Description, "tags": []string{"windlass"},
		"schemaVersion": 39, "editable": true, "refresh": "30s", "time": object{"from": "now-6h", "to": "now"},
		"templating": object{"list": variables}, "panels": panels,
	})
	return out.Bytes(), err
}
