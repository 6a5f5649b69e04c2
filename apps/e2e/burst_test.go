package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// TestBurst deploys 200 apps with 64 calls in flight at any time, and deletes them in the same way. All apps
// become ready and are then deleted, and none is stuck. Instances are simulated, because the test is about
// everything except instances.
func TestBurst(t *testing.T) {
	t.Parallel()
	const apps, concurrency = 200, 64
	s := newStack(t, stackConfig{runtime: "simulated"})
	name := func(i int) string { return fmt.Sprintf("burst-%03d", i) }
	begin := time.Now()
	inParallel(apps, concurrency, func(i int) {
		_, err := persist(t.Context(), s.owner.apps.Deploy, &windlassv1.DeployRequest{
			Mutation: mutation(), App: named(name(i)), Spec: spec(regions([]string{us, eu}[i%2])),
		})
		if err != nil {
			t.Errorf("deploy %s: %v", name(i), err)
		}
	})
	require.False(t, t.Failed())
	accepted := time.Since(begin)
	s.eventually(t, "200 apps ready", func(ctx context.Context) error {
		w, err := s.resources(ctx)
		if err != nil {
			return err
		}
		ready := 0
		var late *windlassv1.App
		for _, a := range w.apps {
			if a.Status == windlassv1.AppStatus_APP_STATUS_READY && a.LiveVersion == 1 {
				ready++
			} else {
				late = a
			}
		}
		if ready != apps {
			return fmt.Errorf("%d of %d are; %s is %s: %s", ready, apps, late.GetName(), late.GetStatus(), late.GetMessage())
		}
		return nil
	})
	t.Logf("%d apps: accepted after %s, ready after %s", apps, accepted.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))

	begin = time.Now()
	inParallel(apps, concurrency, func(i int) {
		_, err := persist(t.Context(), s.owner.apps.DeleteApp, &windlassv1.DeleteAppRequest{Mutation: mutation(), App: named(name(i))})
		if err != nil {
			t.Errorf("delete %s: %v", name(i), err)
		}
	})
	s.eventually(t, "200 apps gone", func(ctx context.Context) error {
		w, err := s.resources(ctx)
		if err != nil {
			return err
		}
		if len(w.apps) > 0 {
			return fmt.Errorf("%d are left; %s is %s: %s", len(w.apps), w.apps[0].Name, w.apps[0].Status, w.apps[0].Message)
		}
		return s.nothingClaimsToRun(ctx, "")
	})
	t.Logf("%d apps: gone after %s", apps, time.Since(begin).Round(time.Millisecond))
}

func inParallel(n, concurrency int, do func(i int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, concurrency)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do(i)
		})
	}
	wg.Wait()
}
