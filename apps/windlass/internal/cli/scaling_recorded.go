package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/windlass-run/windlass/pkg/scaling"
	"github.com/windlass-run/windlass/pkg/scaling/simulate"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// maxLast is how long the control plane keeps the load of apps.
const maxLast = 72 * time.Hour

// recordedRun is the simulation of one region with the load that the control plane stored.
type recordedRun struct {
	Region string    `json:"region"`
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
	// Covered and Asked are in seconds.
	Covered     float64 `json:"coveredSeconds"`
	Asked       float64 `json:"askedSeconds"`
	Concurrency int     `json:"concurrency"`
	// GPUs has the number of GPUs of a replica, by product.
	GPUs     map[string]int32  `json:"gpus,omitempty"`
	Outcomes []recordedOutcome `json:"outcomes"`
}

type recordedOutcome struct {
	simulate.Outcome

	// GPUHours has the GPU-hours by product.
	GPUHours map[string]float64 `json:"gpuHours,omitempty"`
}

// recordedFlags are the flags of a simulation with the stored load of an app.
type recordedFlags struct {
	last              time.Duration
	app, region, role string
}

// simulateRecorded simulates the file with the stored load of an app, in the region of the flag or in all regions of
// the file. It shows the result next to what really ran.
func (a *app) simulateRecorded(ctx context.Context, f *appFile, flags recordedFlags, m simulate.Model) error {
	if flags.last <= 0 || flags.last > maxLast {
		return fmt.Errorf("--last=%s: use a time above 0, up to %s: the load is kept for that long", flags.last, durationText(maxLast))
	}
	regions := f.Spec.GetRegions()
	if flags.region != "" {
		regions = []string{flags.region}
	}
	if len(regions) == 0 {
		return fmt.Errorf("%s: the file names no regions: name one with --region", f.path)
	}
	if err := a.connect(ctx); err != nil {
		return err
	}
	path := a.pathOf(f)
	if flags.app != "" {
		path = a.appPath(flags.app)
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	var runs []recordedRun
	var lacks []string
	for _, region := range regions {
		policy, err := simulatedPolicy(f, region, flags.role, true)
		if err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
		since := time.Now().Add(-flags.last)
		res, err := a.clients.scaling.ListLoad(ctx, &windlassv1.ListLoadRequest{App: path, Region: region, Role: flags.role, Since: since.UnixMilli()})
		if err != nil {
			return err
		}
		if len(res.GetSamples()) == 0 {
			lacks = append(lacks, region)
			continue
		}
		replay, err := simulate.RunRecorded(&policy, recordedOf(res.GetSamples(), &policy), m)
		if lack, ok := errors.AsType[*simulate.LackError](err); ok {
			return fmt.Errorf("%s: %w in %s: %s", f.path, f.fieldInFile(metricsAt(f, flags.role)+fmt.Sprintf("metrics[%d]", lack.Metric), lack.Message), region, lack.Fix)
		}
		if err != nil {
			return fmt.Errorf("region %s: %w", region, err)
		}
		runs = append(runs, newRecordedRun(f, region, flags, replay))
	}
	if len(runs) == 0 {
		return noLoad(path, lacks, flags)
	}
	if len(lacks) > 0 {
		a.infof("left out, because no load is stored: %s", strings.Join(lacks, ", "))
	}
	for i := range runs {
		a.infof("%s", runs[i].summaryText())
	}
	if a.output != "table" {
		return a.showValue(map[string]any{"regions": runs})
	}
	return a.showMessage(nil, func(w *tabwriter.Writer) { recordedTable(w, runs) })
}

// noLoad says why nothing can be simulated, and what to do.
func noLoad(path string, regions []string, flags recordedFlags) error {
	of := path
	if flags.role != "" {
		of += ", role " + flags.role
	}
	return fmt.Errorf("--last=%s: no load of %s is stored in %s: the control plane stores it while the deployed app has scaling, 1 to 5 min after it was measured; deploy the file, with mode: advise if its replicas should stay as they are",
		flags.last, of, strings.Join(regions, ", "))
}

// metricsAt returns the path of the object with the metrics of the role, or of the app, in the file.
func metricsAt(f *appFile, role string) string {
	for i, r := range f.Scaling.GetRoles() {
		if r.GetRole() == role {
			return fmt.Sprintf("scaling.roles[%d].", i)
		}
	}
	return "scaling."
}

// recordedOf converts stored samples. Results of queries are stored by a key of the query.
func recordedOf(samples []*windlassv1.LoadSample, p *scaling.Policy) (out []simulate.Recorded) {
	for _, s := range samples {
		r := simulate.Recorded{
			At: time.UnixMilli(s.GetAt()).UTC(), Span: time.Duration(s.GetSpanMs()) * time.Millisecond, Ready: int(s.GetReady()), Starting: int(s.GetStarting()), Desired: int(s.GetDesired()),
			Rate: widerFloat(s.Rate), InFlight: widerFloat(s.InFlight), Queued: widerFloat(s.Queued), FirstToken: widerFloat(s.FirstTokenP95), Latency: widerFloat(s.LatencyP95),
			Levels: map[string]float64{}, Results: map[string]float64{},
		}
		for name, v := range s.GetLevels() {
			r.Levels[name] = float64(v)
		}
		for _, m := range p.Metrics {
			if v, ok := s.GetResults()[scaling.QueryKey(m.Query)]; ok && m.Type == scaling.Prometheus {
				r.Results[m.Query] = float64(v)
			}
		}
		out = append(out, r)
	}
	return out
}

func widerFloat(v *float32) *float64 {
	if v == nil {
		return nil
	}
	return new(float64(*v))
}

func newRecordedRun(f *appFile, region string, flags recordedFlags, replay *simulate.Replay) recordedRun {
	run := recordedRun{
		Region: region, From: replay.From, To: replay.To, Covered: replay.Covered.Seconds(), Asked: flags.last.Seconds(), Concurrency: replay.Concurrency,
		GPUs: gpusOfReplica(f.Spec, region, flags.role),
	}
	for _, o := range replay.Outcomes {
		out := recordedOutcome{Outcome: o}
		for product, n := range run.GPUs {
			if out.GPUHours == nil {
				out.GPUHours = map[string]float64{}
			}
			out.GPUHours[product] = o.ReplicaHours * float64(n)
		}
		run.Outcomes = append(run.Outcomes, out)
	}
	return run
}

// summaryText says which time the simulation covers.
func (r *recordedRun) summaryText() string {
	covered, asked := time.Duration(r.Covered*float64(time.Second)), time.Duration(r.Asked*float64(time.Second))
	text := fmt.Sprintf("%s: the stored load covers %s of the last %s, from %s to %s", r.Region, durationText(covered), durationText(asked), r.From.Format(time.RFC3339), r.To.Format(time.RFC3339))
	if gap := r.To.Sub(r.From) - covered; gap > time.Minute {
		text += fmt.Sprintf(", without %s between them", durationText(gap))
	}
	return text + fmt.Sprintf("; a replica is assumed to serve %d requests at a time", r.Concurrency)
}

func recordedTable(w *tabwriter.Writer, runs []recordedRun) {
	gpus := slices.ContainsFunc(runs, func(r recordedRun) bool { return len(r.GPUs) > 0 })
	titles := []any{"REGION", "ALGORITHM", "REPLICA-HOURS", "OVER OBJECTIVE", "LONGEST WAIT", "PEAK", "TURNS"}
	if gpus {
		titles = slices.Insert(titles, 3, any("GPU-HOURS"))
	}
	writeRow(w, titles...)
	for _, r := range runs {
		for i, o := range r.Outcomes {
			region := r.Region
			if i > 0 {
				region = ""
			}
			cells := []any{region, o.Algorithm, fmt.Sprintf("%.2f", o.ReplicaHours), fmt.Sprintf("%.2f%%", 100*o.OverObjective), fmt.Sprintf("%.1fs", o.LongestWait), o.Peak, o.Turns}
			if gpus {
				cells = slices.Insert(cells, 3, any(gpuHoursText(o.GPUHours)))
			}
			writeRow(w, cells...)
		}
	}
}

func gpuHoursText(hours map[string]float64) string {
	var parts []string
	for _, product := range slices.Sorted(maps.Keys(hours)) {
		parts = append(parts, fmt.Sprintf("%.2f %s", hours[product], product))
	}
	return orDash(strings.Join(parts, ", "))
}

// gpusOfReplica returns the number of GPUs of a replica, or of an instance of the role, by product. A product that the
// file leaves open is "any". gpusOfReplica ignores overrides that select regions by labels.
func gpusOfReplica(spec *windlassv1.DeploymentSpec, region, role string) map[string]int32 {
	var override *windlassv1.Override
	for _, o := range spec.GetOverrides() {
		if slices.Contains(o.GetRegions(), region) {
			override = o
		}
	}
	out := map[string]int32{}
	add := func(n int32, gpu *windlassv1.Gpu, more ...*windlassv1.Resources) {
		for _, r := range more {
			if r.GetGpu() != nil {
				gpu = r.GetGpu()
			}
		}
		product := gpu.GetProduct()
		if product == "" {
			product = "any"
		}
		if count := n * gpu.GetCount(); count > 0 {
			out[product] += count
		}
	}
	all := spec.GetResources().GetGpu()
	if len(spec.GetRoles()) == 0 {
		add(1, all, override.GetResources())
	}
	for _, r := range spec.GetRoles() {
		instances := max(r.GetInstances(), 1)
		if role != "" {
			if r.GetName() != role {
				continue
			}
			instances = 1
		}
		var own *windlassv1.Resources
		for _, o := range override.GetRoles() {
			if o.GetName() == r.GetName() {
				own = o.GetResources()
			}
		}
		add(instances*max(r.GetHosts(), 1), all, override.GetResources(), r.GetResources(), own)
	}
	return out
}
