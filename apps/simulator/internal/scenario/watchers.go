package scenario

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Watchers measures how a workspace that opens far too many WatchApp streams slows another workspace. It measures p99
// of the other workspace's reads, of its calls that deploy, and of the time from such a call to ready, before and
// during the streams. A deployment goes through the feed to a region and back. Each refused stream is tried again.
// The scenario fails if more streams are open than a workspace may have. It also fails if p99 is above the floor and
// more than twice the value before, or if the control plane uses more memory than allowed. A window is measured again
// if the disk pauses for longer than the floor, or if the host of a virtual machine takes more than a twentieth of
// the processor.
//
// What limits it: the clients of the streams, a process of lower priority, share the processor with the
// control plane and the database.
type Watchers struct {
	Window   time.Duration `help:"How long the other workspace is measured, before and during." default:"15s"`
	Streams  int           `help:"Streams that the workspace opens." default:"10000"`
	Keys     int           `help:"Keys that it opens them with, in turn." default:"20"`
	Again    time.Duration `help:"Mean time until a refused stream is tried again." default:"5s"`
	Reads    float64       `help:"Reads of the other workspace a second." default:"50"`
	Deploys  float64       `help:"Deployments of the other workspace a second." default:"4"`
	Most     int           `help:"Streams that may be open: the limit of one workspace." default:"2000"`
	Floor    time.Duration `help:"p99 up to which the run never counts as a failure." default:"25ms"`
	PlaneMiB float64       `name:"plane-mib" help:"Memory that the control plane may use." default:"1024"`

	made atomic.Int64 // apps of the workspace that does not watch
}

// Deadline implements Scenario.
func (s *Watchers) Deadline() time.Duration { return 10*time.Minute + 2*s.Window }

// Run implements Scenario.
func (s *Watchers) Run(ctx context.Context, env Env) (err error) {
	if err := requirePositive("--window", s.Window, "--streams", s.Streams, "--keys", s.Keys, "--again", s.Again, "--reads", s.Reads,
		"--deploys", s.Deploys, "--most", s.Most, "--plane-mib", s.PlaneMiB); err != nil {
		return err
	}
	env.recordSizes("window", s.Window.String(), "streams", s.Streams, "keys", s.Keys, "reads_per_s", s.Reads, "deploys_per_s", s.Deploys)
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	v, err := s.newViewers(ctx, w, env.Self)
	if err != nil {
		return err
	}
	defer v.stop()
	if _, _, err := s.makeLoad(ctx, w); err != nil { // the first calls of an installation are slow
		return err
	}
	before, _, err := s.measureQuiet(ctx, w)
	if err != nil {
		return err
	}
	if err := v.openStreams(ctx); err != nil {
		return err
	}
	begun := v.currentState()
	w.Progressf("%d streams are open, and %d tries were refused", begun.Open, begun.Refused)
	during, parts, err := s.measureQuiet(ctx, w)
	if err != nil {
		return err
	}
	end := v.currentState()
	tries := float64(end.Refused-begun.Refused) / during.took.Seconds()
	mib := parts[stack.ControlPlane(1)].PeakRSSMiB
	env.Result.Parts = parts
	w.Progressf("%d streams are open, and %.0f tries a second were refused: p99 of reads %s before and %s during, of calls that deploy %s and %s, to ready %s and %s, %.0f MiB",
		end.Open, tries, before.reads, during.reads, before.deploys, during.deploys, before.ready, during.ready, mib)
	env.Result.Figure("streams", float64(end.Open), "open")
	env.Result.Figure("refused_per_s", tries, "tries")
	env.Result.Figure("reads_p99_before_ms", measure.Millis(before.reads), "ms")
	env.Result.Figure("reads_p99_ms", measure.Millis(during.reads), "ms during the streams")
	env.Result.Figure("deploys_p99_before_ms", measure.Millis(before.deploys), "ms")
	env.Result.Figure("deploys_p99_ms", measure.Millis(during.deploys), "ms during the streams")
	env.Result.Figure("ready_p99_before_ms", measure.Millis(before.ready), "ms from the call to ready")
	env.Result.Figure("ready_p99_ms", measure.Millis(during.ready), "ms during the streams")
	env.Result.Figure("disk_pause_before_ms", measure.Millis(before.pause), "ms, the longest sync of the disk")
	env.Result.Figure("disk_pause_ms", measure.Millis(during.pause), "ms during the streams")
	env.Result.Figure("stolen_before", before.stolen, "of the processor time, which the host gave to others")
	env.Result.Figure("stolen", during.stolen, "of it during the streams")
	env.Result.Figure("plane_mib", mib, "MiB of the control plane at most")
	var failures []error
	if end.Most > int64(s.Most) {
		failures = append(failures, fmt.Errorf("%d streams of one workspace were open, and %d may be", end.Most, s.Most))
	}
	for what, p99 := range map[string][2]time.Duration{
		"reads":                   {before.reads, during.reads},
		"calls that deploy":       {before.deploys, during.deploys},
		"deployments until ready": {before.ready, during.ready},
	} {
		if p99[1] > 2*p99[0] && p99[1] > s.Floor {
			failures = append(failures, fmt.Errorf("p99 of another workspace's %s went from %s to %s; the longest sync of the disk took %s and %s, and the host took %.0f %% and %.0f %% of the processor",
				what, p99[0], p99[1], before.pause, during.pause, 100*before.stolen, 100*during.stolen))
		}
	}
	if mib > s.PlaneMiB {
		failures = append(failures, fmt.Errorf("the control plane had %.0f MiB", mib))
	}
	return errors.Join(failures...)
}

// served has p99 of reads, of calls that deploy, and of the times from these calls to ready. took is the
// measured time, pause the longest sync of the disk in it, and stolen the share of the processor time that the
// host took.
type served struct {
	reads, deploys, ready, took, pause time.Duration
	stolen                             float64
}

// measureQuiet makes load until nothing disturbs the machine, but at most measure.Windows times.
func (s *Watchers) measureQuiet(ctx context.Context, w *testbed.Testbed) (out served, parts map[string]measure.Part, err error) {
	for n := 1; ; n++ {
		probe, err := measure.ProbeDisk(w.Stack.Dir())
		if err != nil {
			return out, nil, err
		}
		begun := measure.ReadProcessorTime()
		out, parts, err = s.makeLoad(ctx, w)
		out.stolen = measure.ReadProcessorTime().StolenSince(begun)
		pause, stopped := probe.Stop()
		out.pause = pause
		quiet := pause <= s.Floor && out.stolen <= measure.MostStolen
		if err = errors.Join(err, stopped); err != nil || quiet || n == measure.Windows {
			return out, parts, err
		}
		w.Progressf("the disk paused for %s, and the host took %.0f %% of the processor; the window is measured again", pause, 100*out.stolen)
	}
}

// makeLoad makes the other workspace's calls for a window. Each deployment is of a new app.
func (s *Watchers) makeLoad(ctx context.Context, w *testbed.Testbed) (out served, parts map[string]measure.Part, err error) {
	var mu sync.Mutex
	var reads, calls, ready measure.Durations
	note := func(to *measure.Durations, began time.Time) {
		mu.Lock()
		defer mu.Unlock()
		to.Add(time.Since(began))
	}
	watch := newReadiness(w.DB)
	stopWatch := watch.startAsking(ctx)
	defer stopWatch()
	deploy := func() error {
		app := testbed.App{Name: testbed.AppName(int(s.made.Add(1))), Regions: w.Regions, Replicas: 1, Version: "v1"}
		began := time.Now()
		id, err := w.Deploy(ctx, app)
		if err != nil {
			return err
		}
		note(&calls, began)
		if err := watch.waitReady(ctx, id, app.Name); err != nil {
			return err
		}
		note(&ready, began)
		return nil
	}
	if err := deploy(); err != nil { // so that there is an app to read
		return out, nil, err
	}
	path := testbed.Path(testbed.AppName(1))
	out.took, parts, err = measureWindow(ctx, w, func() error {
		end := time.Now().Add(s.Window)
		var all sync.WaitGroup
		var failed [2]error
		all.Go(func() {
			failed[0] = callPaced(ctx, end, s.Reads, func() error {
				began := time.Now()
				_, err := w.API.Apps.GetApp(ctx, &windlassv1.GetAppRequest{App: path})
				note(&reads, began)
				return err
			})
		})
		all.Go(func() { failed[1] = callPaced(ctx, end, s.Deploys, deploy) })
		all.Wait()
		return errors.Join(failed[:]...)
	})
	out.reads, out.deploys, out.ready = reads.Quantile(0.99), calls.Quantile(0.99), ready.Quantile(0.99)
	return out, parts, err
}

// callPaced begins a call perSecond times a second until end, even if calls overlap, and waits for all calls.
func callPaced(ctx context.Context, end time.Time, perSecond float64, call func() error) error {
	every := time.Duration(float64(time.Second) / perSecond)
	var calls sync.WaitGroup
	defer calls.Wait()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	for due := time.Now(); due.Before(end); due = due.Add(every) {
		if err := waitFor(ctx, time.Until(due)); err != nil {
			break
		}
		calls.Go(func() {
			if err := call(); err != nil {
				fail(err)
			}
		})
	}
	calls.Wait()
	return context.Cause(ctx)
}
