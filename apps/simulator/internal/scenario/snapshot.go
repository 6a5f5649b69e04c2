package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/bare"
	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
)

// Snapshot measures how fast an agent that lost its inbox receives everything again: from the beginning of
// its stream until the last item is stored. An app is two items: a deployment and its routes.
//
// What limits it: the processor. Reading, encoding, sending, decoding and preparing for the agent's file run
// at the same time. So the last item arrives soon after it was read, and then only storing is left.
// cpu_us_per_item is the processor time of all processes, including the agent's work before and after the
// snapshot.
//
// The layers below are faster. floor_read_items_per_s is how fast the database alone reads the same rows, and
// floor_store_... how fast the agent's file alone stores them, synced or not. A snapshot of few items mostly
// waits for round trips. The round trips of the read and of the session's beginning run in parallel.
//
// The agent is killed once the last item is stored. So no figure contains the inventory of instances that it
// would send later. The start of each agent is part of the processor time.
type Snapshot struct {
	Items  []int `help:"Items of the region, one measurement each, ascending." default:"250,10000"`
	Repeat int   `help:"Snapshots of each size; the median counts." default:"15"`
}

// Deadline implements Scenario.
func (s *Snapshot) Deadline() time.Duration {
	if len(s.Items) == 0 {
		return time.Minute
	}
	return 10*time.Minute + time.Duration(slices.Max(s.Items))*100*time.Millisecond
}

// Run implements Scenario.
func (s *Snapshot) Run(ctx context.Context, env Env) (err error) {
	if err := requirePositive("--repeat", s.Repeat, "--items", len(s.Items)); err != nil {
		return err
	}
	if !slices.IsSorted(s.Items) || s.Items[0] < 2 {
		return errors.New("--items: ascending numbers from 2 on")
	}
	env.recordSizes("items", s.Items, "repeat", s.Repeat)
	type snapshot struct {
		items int
		took  time.Duration
	}
	received := make(chan snapshot, 1)
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: 1, Snapshot: func(_ string, items int, took time.Duration) {
		select {
		case received <- snapshot{items, took}:
		default: // the snapshot of the first start, for which the scenario does not wait
		}
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	member := w.Fleet.Members()[0]
	have := 0
	for _, size := range s.Items {
		apps := make([]testbed.App, 0, size/2-have)
		for ; have < size/2; have++ {
			apps = append(apps, testbed.App{Name: testbed.AppName(have), Regions: w.Regions, Replicas: 1, Version: "v1"})
		}
		w.Progressf("deploying %d apps", len(apps))
		if _, err := w.DeployAll(ctx, apps, setupConcurrency); err != nil {
			return err
		}
		if err := w.WaitReady(ctx, 1, have); err != nil {
			return err
		}
		w.Progressf("sending %d snapshots of %d items", s.Repeat, 2*have)
		var times measure.Durations
		_, parts, err := measureWindow(ctx, w, func() error {
			for range s.Repeat {
				member.Kill()
				if err := member.Lose(); err != nil {
					return err
				}
				select {
				case <-received:
				default:
				}
				if err := member.Start(ctx); err != nil {
					return err
				}
				select {
				case got := <-received:
					if got.items != 2*have {
						return fmt.Errorf("a snapshot of %d items, and the region has %d", got.items, 2*have)
					}
					times.Add(got.took)
				case <-ctx.Done():
					return fmt.Errorf("no snapshot: %w", context.Cause(ctx))
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		env.Result.Parts = parts
		perSecond := float64(2*have) / times.Quantile(0.5).Seconds()
		env.Result.Rounds = append(env.Result.Rounds, map[string]any{
			"items": 2 * have, "ms": measure.Millis(times.Quantile(0.5)), "items_per_s": perSecond,
		})
		env.Result.Figure(fmt.Sprintf("items_per_s_%d", size), perSecond, "stored by the agent")
		env.Result.Figure("items_per_s", perSecond, "at the largest size")
		env.Result.Figure("cpu_us_per_item", 1e6*cpuSeconds(parts)/float64(2*have*s.Repeat), "us of processor time, all parts, including the starts of agents")
		if err := s.measureFloors(ctx, env, w, 2*have); err != nil {
			return err
		}
	}
	return nil
}

// measureFloors measures the database and the agent's file alone, with the rows of the snapshots that were
// just sent.
func (s *Snapshot) measureFloors(ctx context.Context, env Env, w *testbed.Testbed, items int) error {
	w.Progressf("reading and storing the same without Windlass")
	regions, err := w.DB.Regions(ctx)
	if err != nil {
		return err
	}
	member := w.Fleet.Members()[0]
	member.Kill()
	var read, store, durable measure.Durations
	for range s.Repeat {
		took, err := w.DB.SnapshotRead(ctx, regions[w.Regions[0]])
		if err != nil {
			return err
		}
		read.Add(took)
		if took, err = bare.InboxWrite(member.Inbox(), false); err != nil {
			return err
		}
		store.Add(took)
		if took, err = bare.InboxWrite(member.Inbox(), true); err != nil {
			return err
		}
		durable.Add(took)
	}
	rate := func(d measure.Durations) float64 { return float64(items) / d.Quantile(0.5).Seconds() }
	env.Result.Figure("floor_read_items_per_s", rate(read), "their rows read, by the database alone")
	env.Result.Figure("floor_store_items_per_s", rate(store), "stored, by the agent's file alone")
	env.Result.Figure("floor_store_durable_items_per_s", rate(durable), "stored and flushed to the disk, by the agent's file alone")
	return member.Start(ctx)
}
