package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/pkg/preset"
	"github.com/windlass-run/windlass/pkg/scaling"
	"github.com/windlass-run/windlass/pkg/scaling/simulate"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (a *app) scalingCommand() *cobra.Command {
	return groupCommands(&cobra.Command{
		Use:   "scaling",
		Short: "Show how an app's replicas follow the load, and simulate it",
	}, a.scalingStatusCommand(), a.scalingWhyCommand(), a.scalingSimulateCommand())
}

func (a *app) scalingStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status APP",
		Short: "Show what each metric wants in each region, and which limit holds",
		Long: `Status shows the newest decision in each region: how many replicas there are and how many are wanted, what each
metric wants, the limit that applies, and holds. WHEN is the time of the decision. If another process of the
control plane has the region's stream, status shows the last decision that changed something.`,
		Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.scaling.GetScaling(ctx, &windlassv1.GetScalingRequest{App: a.appPath(args[0])})
			if err != nil {
				return err
			}
			switch {
			case resp.GetPolicy() == nil:
				a.infof("%s: the replicas do not follow the load: its file has no scaling", args[0])
			case len(resp.GetRegions()) == 0:
				a.infof("%s: no decision yet: look again in some seconds, once the regions have reported their load", args[0])
			}
			return a.showMessage(resp, func(w *tabwriter.Writer) { scalingTable(w, resp) })
		}),
	}
}

func scalingTable(w *tabwriter.Writer, resp *windlassv1.GetScalingResponse) {
	if len(resp.GetRegions()) > 0 {
		decisionTable(w, resp.GetRegions())
	}
	holdLines(w, resp)
}

func decisionTable(w *tabwriter.Writer, regions []*windlassv1.RegionScaling) {
	pooled := slices.ContainsFunc(regions, func(r *windlassv1.RegionScaling) bool { return r.GetRole() != "" })
	titles := []any{"REGION", "REPLICAS", "READY", "WANTED", "MIN", "MAX", "LIMIT", "METRIC", "VALUE", "TARGET", "WANTS", "WHEN"}
	if pooled {
		titles = slices.Insert(titles, 1, any("ROLE"))
		titles[2] = "INSTANCES"
	}
	writeRow(w, titles...)
	for _, r := range regions {
		head := []any{r.GetRegion(), r.GetReplicas(), r.GetReady(), r.GetWanted(), r.GetMin(), r.GetMax(), orDash(r.GetLimit())}
		if pooled {
			head = slices.Insert(head, 1, any(r.GetRole()))
		}
		if len(r.GetWants()) == 0 {
			writeRow(w, append(head, "-", "-", "-", "-", timeText(r.GetAt()))...)
		}
		for _, want := range r.GetWants() {
			value, wants := "missing", "-"
			if want.Value != nil {
				value, wants = metricValue(want), strconv.Itoa(int(want.GetReplicas()))
			}
			writeRow(w, append(head, metricName(want.GetMetric()), value, want.GetMetric().GetTarget(), wants, timeText(r.GetAt()))...)
			for i := range head {
				head[i] = ""
			}
		}
	}
	for _, r := range regions {
		for _, want := range r.GetWants() {
			if want.GetProblem() != "" {
				writeRow(w, "Missing:", fmt.Sprintf("%s in %s: %s", metricName(want.GetMetric()), placeOf(r), want.GetProblem()))
			}
		}
	}
}

// placeOf names the region of a decision, and the role of a pool.
func placeOf(r *windlassv1.RegionScaling) string {
	if r.GetRole() == "" {
		return r.GetRegion()
	}
	return r.GetRegion() + ", role " + r.GetRole()
}

// metricName returns the name of the metric in the app file.
func metricName(m *windlassv1.ScalingMetric) string {
	return cmp.Or(string(scaling.TypeOf(m.GetType())), enumText(m.GetType(), "TYPE_"))
}

func metricValue(want *windlassv1.MetricWant) string {
	switch want.GetMetric().GetType() {
	case windlassv1.ScalingMetric_TYPE_FIRST_TOKEN, windlassv1.ScalingMetric_TYPE_LATENCY:
		return time.Duration(want.GetValue() * float64(time.Second)).Round(time.Millisecond).String()
	default:
		return strconv.FormatFloat(math.Round(want.GetValue()*1000)/1000, 'f', -1, 64)
	}
}

func holdLines(w *tabwriter.Writer, resp *windlassv1.GetScalingResponse) {
	for _, h := range resp.GetHolds() {
		writeRow(w, "Hold:", fmt.Sprintf("%d %s in %s until %s, by %s", h.GetReplicas(), unitOf(h.GetRole()), orAll(h.GetRegion()), timeText(h.GetUntil()), h.GetWho()))
	}
}

// scalingLines prints the part of status about scaling: the wanted replicas, their limit, and holds.
func scalingLines(w *tabwriter.Writer, resp *windlassv1.GetScalingResponse) {
	if resp.GetPolicy() == nil {
		return
	}
	for _, r := range resp.GetRegions() {
		unit := "replicas"
		if r.GetRole() != "" {
			unit = "instances"
		}
		text := fmt.Sprintf("%s: %d of %d to %d %s wanted", placeOf(r), r.GetWanted(), r.GetMin(), r.GetMax(), unit)
		if r.GetLimit() != "" {
			text += fmt.Sprintf(", %d by the metrics: %s", r.GetUnlimited(), r.GetLimit())
		}
		if r.GetRole() != "" && r.GetWanted() == 0 {
			text += ": the pool is at zero"
		}
		writeRow(w, "Scaling:", text)
	}
	holdLines(w, resp)
}

// unitOf returns the unit of a hold's number: replicas, or instances of a role.
func unitOf(role string) string {
	if role == "" {
		return "replicas"
	}
	return "instances of role " + role
}

// scalingEntries are the kinds of history entries about scaling.
var scalingEntries = map[string]bool{
	"Scaled": true, "ScalingDecided": true, "ScalingLimited": true, "ScalingMetricMissing": true, "ScalingPolicyChanged": true,
	"ScalingHeld": true, "ScalingHoldEnded": true, "ScalingRaised": true, "ScalingRaiseRefused": true, "Woken": true,
}

func (a *app) scalingWhyCommand() *cobra.Command {
	var at string
	var limit int
	var since time.Duration
	var role string
	cmd := &cobra.Command{
		Use:   "why APP",
		Short: "Show the decisions about an app's replicas, with their numbers",
		Long: `Why shows the decisions about an app's replicas, with their reasons: changes of the number, of the limit and of the
policy, holds, wakes from zero, and what regions raised while they were cut off. With --at it shows what was in
force at that time: the last decision before the time in each region, and for each role of a pool. With --role it
shows the decisions about one role. It looks back 7 days, or as far as --since says.`,
		Example: "  windlass scaling why echo\n  windlass scaling why echo --at 2026-11-28T08:15:00Z --since 720h",
		Args:    cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			until := time.Now()
			if at != "" {
				var err error
				if until, err = time.Parse(time.RFC3339, at); err != nil {
					return fmt.Errorf("--at=%q: want a time such as 2026-11-28T08:15:00Z", at)
				}
			}
			if since <= 0 {
				return fmt.Errorf("--since=%s: use a time above 0", since)
			}
			items, err := a.scalingHistory(ctx, a.appPath(args[0]), role, until.Add(-since), until, at != "", limit)
			if err != nil {
				return err
			}
			if len(items) == 0 {
				a.infof("%s: no decision in the %s before %s: look further back with --since", args[0], durationText(since), until.UTC().Format(time.RFC3339))
			}
			return showList(a, items, func(w *tabwriter.Writer) {
				writeRow(w, "WHEN", "REGION", "WHAT", "WHO", "WHY")
				for _, h := range slices.Backward(items) {
					writeRow(w, timeText(h.GetAt()), orDash(h.GetRegion()), h.GetWhat(), h.GetWho(), a.messageCell(h.GetWhy()))
				}
			})
		}),
	}
	cmd.Flags().StringVar(&role, "role", "", "only decisions about this role of a pool")
	cmd.Flags().StringVar(&at, "at", "", "show what was in force at this time (RFC 3339)")
	cmd.Flags().DurationVar(&since, "since", 7*24*time.Hour, "how far to look back")
	cmd.Flags().IntVar(&limit, "limit", 50, "maximum number, newest first; 0: all")
	return cmd
}

// scalingHistory returns the newest entries about scaling between two times. It reads no page after it has limit
// entries (0: all). If newest is set, it returns only the newest entry of each region and role. An empty role means all
// roles.
func (a *app) scalingHistory(ctx context.Context, app, role string, since, until time.Time, newest bool, limit int) (out []*windlassv1.HistoryEntry, err error) {
	seen := map[string]bool{}
	page := &windlassv1.PageRequest{Size: 500}
	for {
		r, err := a.clients.history.ListHistory(ctx, &windlassv1.ListHistoryRequest{
			Page: page, App: app, Since: max(0, since.UnixMilli()), Until: until.UnixMilli(),
		})
		if err != nil {
			return nil, err
		}
		for _, h := range r.GetEntries() {
			if h.GetAt() < since.UnixMilli() {
				return out, nil // a control plane of an earlier release does not know the times
			}
			about := roleOfEntry(h)
			of := h.GetRegion() + "/" + about
			if !scalingEntries[h.GetWhat()] || h.GetAt() > until.UnixMilli() || newest && seen[of] || role != "" && about != role && h.GetWhat() != "Woken" {
				continue
			}
			seen[of] = true
			if out = append(out, h); limit > 0 && len(out) == limit {
				return out, nil
			}
		}
		if page.Token = r.GetPage().GetNext(); page.Token == "" {
			return out, nil
		}
	}
}

var entryRole = regexp.MustCompile(`\brole ([a-z][-a-z0-9]*)`)

// roleOfEntry returns the role of a pool that the entry is about, or "" if the entry is about the app.
func roleOfEntry(h *windlassv1.HistoryEntry) string {
	if found := entryRole.FindStringSubmatch(h.GetWhy()); found != nil {
		return found[1]
	}
	return ""
}

// maxTrace bounds the size of a trace, in bytes.
const maxTrace = 64 << 20

func (a *app) scalingSimulateCommand() *cobra.Command {
	var file, trace string
	var recorded recordedFlags
	m := simulate.Model{}
	cmd := &cobra.Command{
		Use:   "simulate -f FILE (--last DURATION | --trace FILE)",
		Short: "Play the load of an app, or a trace, against the scaling of an app's file",
		Long: `Simulate plays requests against the scaling of an app's file, with the algorithm of the control plane. For
comparison, it also plays them against the Kubernetes HorizontalPodAutoscaler and Knative, with their defaults. For each
of them it shows replica-hours, and the share of requests that waited longer than the objective. For a pool it simulates
one role, without its couple.

With --last it plays the load that the deployed app had, next to what really ran ("ran"). The control plane stores that load
for 3 days while the app has scaling, in any mode. The file may have another policy than the deployed app. Requests take
the time that was measured. A replica serves as many requests at a time as replicas did on average in the busiest minute,
or as the target of inFlight, if that is more. --concurrency sets another number. Standard error says how much of the time
the stored load covers.
Waits of "ran" are means of a minute, so that short waits do not count.

With --trace it does not call the control plane. The trace is CSV with the columns seconds and requests_per_second, or JSON,
a list of objects with seconds and requestsPerSecond. Each rate holds up to the next point, and the last point is the end.`,
		Example: `  windlass scaling simulate -f app.yaml --last 24h
  windlass scaling simulate -f other-policy.yaml --last 1h --app chat --region eu-west-1
  windlass scaling simulate -f deployments/examples/scaling.yaml --trace deployments/examples/traces/flash-crowd.csv
  windlass scaling simulate -f app.yaml --trace day.json --start 90s --service 4s --concurrency 16 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := readAppFile(file, a.Stdin)
			if err != nil {
				return err
			}
			if err := checkSimulated(f, m); err != nil {
				return err
			}
			if trace == "" {
				switch {
				case cmd.Flags().Changed("service"):
					return errors.New("--service: leave it out with --last: the time that requests take was measured")
				case !cmd.Flags().Changed("concurrency"):
					m.Concurrency = 0
				}
				return a.simulateRecorded(cmd.Context(), f, recorded, m)
			}
			if recorded.app != "" {
				return errors.New("--app: leave it out with --trace, or use --last in the place of --trace")
			}
			outcomes, err := runSimulation(f, trace, recorded.region, recorded.role, m)
			if err != nil {
				return err
			}
			if a.output != "table" {
				return a.showValue(map[string]any{"outcomes": outcomes})
			}
			return a.showMessage(nil, func(w *tabwriter.Writer) {
				writeRow(w, "ALGORITHM", "REPLICA-HOURS", "OVER OBJECTIVE", "LONGEST WAIT", "PEAK", "TURNS")
				for _, o := range outcomes {
					writeRow(w, o.Algorithm, fmt.Sprintf("%.2f", o.ReplicaHours), fmt.Sprintf("%.2f%%", 100*o.OverObjective),
						fmt.Sprintf("%.1fs", o.LongestWait), o.Peak, o.Turns)
				}
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&file, "file", "f", "", "the app's file, - for standard input")
	flags.StringVar(&trace, "trace", "", "the trace, CSV or JSON")
	flags.DurationVar(&recorded.last, "last", 0, "play the load of the deployed app in this time, up to 72h")
	flags.StringVar(&recorded.app, "app", "", "with --last: the app whose load is played (default the file's app)")
	flags.StringVar(&recorded.region, "region", "", "use the load and the overrides of this region (default with --last: all regions of the file)")
	flags.StringVar(&recorded.role, "role", "", "the role of a pool to simulate: all requests then go through it")
	flags.DurationVar(&m.Start, "start", 45*time.Second, "time until a replica is ready")
	flags.DurationVar(&m.Service, "service", 2*time.Second, "time that a request takes, without waiting")
	flags.IntVar(&m.Concurrency, "concurrency", 32, "requests that a replica serves at a time")
	flags.DurationVar(&m.Objective, "objective", time.Second, "time that a request may wait")
	mustSucceed(cmd.MarkFlagRequired("file"))
	cmd.MarkFlagsOneRequired("trace", "last")
	cmd.MarkFlagsMutuallyExclusive("trace", "last")
	mustSucceed(cmd.MarkFlagFilename("file", "yaml", "yml", "json"))
	mustSucceed(cmd.MarkFlagFilename("trace", "csv", "json"))
	return cmd
}

// checkSimulated checks the file's scaling and the flags of the model.
func checkSimulated(f *appFile, m simulate.Model) error {
	if f.Scaling == nil {
		return fmt.Errorf("%s: scaling: missing: the replicas do not follow the load", f.path)
	}
	if fault := scaling.Check(f.Scaling); fault != nil {
		return fmt.Errorf("%s: %w: %s", f.path, f.fieldInFile("scaling."+fault.Field, fault.Message), fault.Fix)
	}
	if fault := lackingSignal(f); fault != nil {
		return fmt.Errorf("%s: %w: %s", f.path, f.fieldInFile("scaling."+fault.Field, fault.Message), fault.Fix)
	}
	switch {
	case m.Start < 0 || m.Start > time.Hour:
		return fmt.Errorf("--start=%s: use a time from 0 to 1h", m.Start)
	case m.Service <= 0:
		return fmt.Errorf("--service=%s: use a time above 0", m.Service)
	case m.Concurrency < 1:
		return fmt.Errorf("--concurrency=%d: use 1 or more", m.Concurrency)
	case m.Objective < 0:
		return fmt.Errorf("--objective=%s: use 0 or more", m.Objective)
	}
	return nil
}

func runSimulation(f *appFile, trace, region, role string, m simulate.Model) ([]simulate.Outcome, error) {
	policy, err := simulatedPolicy(f, region, role, false)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.path, err)
	}
	info, err := os.Stat(trace)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxTrace {
		return nil, errors.New("--trace: larger than 64 MiB")
	}
	data, err := os.ReadFile(trace)
	if err != nil {
		return nil, err
	}
	points, err := simulate.ParseTrace(data)
	if err == nil {
		var outcomes []simulate.Outcome
		if outcomes, err = simulate.Run(&policy, points, m); err == nil {
			return outcomes, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", trace, err)
}

// lackingSignal returns the first metric that the file's engine does not have, or nil. It is nil for an engine that this
// program does not know, such as a preset of the workspace.
func lackingSignal(f *appFile) *scaling.Fault {
	serve := f.Spec.GetServe()
	if serve == nil {
		return scaling.CheckSignals(f.Scaling, "", nil)
	}
	p, known := preset.Find(serve.GetEngine())
	if !known {
		return nil
	}
	var engine []*windlassv1.EngineMetric
	for _, m := range p.Metrics(strings.TrimPrefix(serve.GetEngineVersion(), "v")) {
		engine = append(engine, &windlassv1.EngineMetric{Signal: m.Signal})
	}
	return scaling.CheckSignals(f.Scaling, p.ID(), engine)
}

// simulatedPolicy returns the scaling of the file for the region, or the scaling of a role of a pool. recorded is true
// for the stored load of an app, because only such a load has results of queries.
func simulatedPolicy(f *appFile, region, role string, recorded bool) (policy scaling.Policy, err error) {
	metrics, at := f.Scaling.GetMetrics(), "scaling."
	if pool := f.Scaling.GetRoles(); len(pool) > 0 {
		var names []string
		for _, r := range pool {
			names = append(names, r.GetRole())
		}
		i := slices.Index(names, role)
		switch {
		case role == "":
			return policy, fmt.Errorf("scaling.roles: the roles of a pool scale separately: name one with --role: %s", strings.Join(names, ", "))
		case i < 0:
			return policy, fmt.Errorf("--role=%s: scaling has no such role; its roles are %s", role, strings.Join(names, ", "))
		case len(pool[i].GetMetrics()) == 0:
			return policy, fmt.Errorf("--role=%s: the role has no metrics and follows role %s: simulate that one", role, pool[i].GetCouple().GetRole())
		}
		policies, fault := scaling.NewRoles(f.Scaling, region)
		if fault != nil {
			return policy, fmt.Errorf("scaling.%w", fault)
		}
		policy, metrics, at = policies[i].Policy, pool[i].GetMetrics(), fmt.Sprintf("scaling.roles[%d].", i)
	} else {
		if role != "" {
			return policy, fmt.Errorf("--role=%s: the file's scaling has no roles: leave it out", role)
		}
		var fault *scaling.Fault
		if policy, fault = scaling.New(f.Scaling, region); fault != nil {
			return policy, fmt.Errorf("scaling.%w", fault)
		}
	}
	for i, m := range metrics {
		if m.GetType() == windlassv1.ScalingMetric_TYPE_PROMETHEUS && !recorded {
			return policy, fmt.Errorf("%w: use another metric, such as inFlight", f.fieldInFile(fmt.Sprintf("%smetrics[%d].type", at, i), "a trace has no results of queries"))
		}
	}
	return policy, nil
}
