package fleettest

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/ident"
)

var (
	// of is the size of fleets. It is small enough for hundreds of fleets in a minute. It is large enough
	// that every replica has streams, and that a rollout meets regions in different states.
	of = size{replicas: 3, regions: 6, apps: 5}
	// faultTime is how long faults occur.
	faultTime = 90 * time.Second
)

// seeds returns the first seed and the number of fleets. WINDLASS_FLEET_SEED selects one fleet.
func seeds(t *testing.T) (first, count uint64) {
	if s := os.Getenv("WINDLASS_FLEET_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err, "WINDLASS_FLEET_SEED")
		return n, 1
	}
	switch {
	case testing.Short():
		return 1, 10
	case raced:
		return 1, 24
	}
	return 1, 1000
}

func TestFleet_ConvergesWhateverBreaks(t *testing.T) { //nolint:tparallel // next to other tests it would not have a processor of its own
	first, count := seeds(t)
	if count == 1 {
		warm(t)
		runSeed(t, first, false)
		return
	}
	if shard := os.Getenv(shardVariable); shard != "" {
		var i, n uint64
		_, err := fmt.Sscanf(shard, "%d/%d", &i, &n)
		require.NoError(t, err, shardVariable)
		warm(t)
		// A fleet may lose all apps before they are served, or before one scales, but not all fleets do.
		routed, scaled, pooled, stable, paired := false, false, false, 0, 0
		for seed := first + i; seed < first+count; seed += n {
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
				c := runSeed(t, seed, false).check
				routed, scaled, pooled = routed || c.sawRoutes, scaled || c.sawScaling > 3, pooled || c.sawPools > 1
				stable, paired = stable+c.sawSlots, paired+c.sawPairs
			})
		}
		require.True(t, routed, "the checker saw no routes in any fleet")
		require.True(t, scaled, "the checker saw hardly any scaling in any fleet")
		require.True(t, pooled, "the checker saw hardly any versions of pools go live in any fleet")
		require.True(t, count < 100 || stable > 1, "the checker saw hardly any versions with stable slots go live in all fleets")
		require.True(t, count < 100 || paired > 1, "the checker saw hardly any versions with pairs go live in all fleets")
		return
	}
	// A fleet uses one P, so there is one process for each CPU.
	shards := min(runtime.NumCPU(), int(count))
	for i := range shards {
		t.Run(fmt.Sprintf("shard=%d", i), func(t *testing.T) {
			t.Parallel()
			out, err := inAnother(t, "^TestFleet_ConvergesWhateverBreaks$", fmt.Sprintf("%s=%d/%d", shardVariable, i, shards))
			if err != nil {
				t.Fatalf("%v\n%s", err, failures(out))
			}
			require.Contains(t, out, "--- PASS: TestFleet_ConvergesWhateverBreaks")
			t.Logf("%d fleets", strings.Count(out, "    --- PASS: "))
		})
	}
}

// shardVariable names the share of the seeds that a process runs: "0/2".
const shardVariable = "WINDLASS_FLEET_SHARD"

// inAnother runs tests of this binary in another process.
func inAnother(t *testing.T, tests string, env ...string) (string, error) {
	ctx := t.Context()
	if deadline, ok := t.Deadline(); ok {
		bounded, cancel := context.WithDeadline(ctx, deadline.Add(-10*time.Second))
		defer cancel()
		ctx = bounded
	}
	args := []string{"-test.run=" + tests, "-test.v"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) } // SIGQUIT prints where it hangs
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// passed matches the lines of a verbose run that carry no information.
var passed = regexp.MustCompile(`(?m)^ *(=== (RUN|CONT|PAUSE|NAME) .*|--- PASS: .*|PASS)\n`)

func failures(out string) string { return passed.ReplaceAllString(out, "") }

// runSeed runs a fleet, and fails the test if the fleet had a violation.
func runSeed(t *testing.T, seed uint64, keepTrace bool) *fleet {
	w := run(t, seed, of, keepTrace)
	for _, v := range w.check.broken() {
		t.Errorf("%s\n\nthis fleet alone: WINDLASS_FLEET_SEED=%d go test -v -run WhateverBreaks ./apps/e2e/fleettest", v, seed)
	}
	t.Logf("seed %d: trace %s, %d raises, %d versions with stable slots, %d with pairs", seed, w.trace, w.check.sawRaises, w.check.sawSlots, w.check.sawPairs)
	return w
}

func run(t *testing.T, seed uint64, of size, keepTrace bool) *fleet {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	// After two collections, every sync.Pool is empty.
	runtime.GC()
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(collect))
	cryptotest.SetGlobalRandom(t, seed)
	reader := rand.Reader
	defer func() { rand.Reader = reader }()
	ident.Forget()
	var w *fleet
	synctest.Test(t, func(t *testing.T) {
		var pinned *scheduler
		if !raced {
			var err error
			pinned, err = pin(seed)
			require.NoError(t, err)
			defer func() {
				if err := pinned.unpin(); err != nil {
					t.Logf("seed %d may have another history the next time: %v", seed, err)
				}
			}()
		}
		w = newFleet(t, seed, of, pinned, keepTrace)
		defer w.stop()
		go w.check.watch()
		w.causeFaults(of, faultTime)
		w.heal()
		w.converge()
	})
	return w
}

// warm runs a fleet without checks, so that one-time work of the process is done before the first real fleet.
func warm(t *testing.T) {
	of := size{replicas: 2, regions: 2, apps: 3}
	t.Run("warm", func(t *testing.T) { run(t, 0, of, false) })
}

// TestFleet_SameSeedGivesTheSameTrace runs each seed twice in this process and once in another process. In
// the other process, maps have other hashes. So code that depends on the order of a map gives another trace
// there.
func TestFleet_SameSeedGivesTheSameTrace(t *testing.T) {
	if raced {
		t.Skip("the race detector shuffles goroutines on purpose")
	}
	count := uint64(12)
	if testing.Short() {
		count = 2
	}
	warm(t)
	if os.Getenv(shardVariable) != "" {
		for seed := uint64(1001); seed < 1001+count; seed++ {
			runSeed(t, seed, false)
		}
		return
	}
	out, err := inAnother(t, "^TestFleet_SameSeedGivesTheSameTrace$", shardVariable+"=0/1")
	require.NoError(t, err, failures(out))
	for seed := uint64(1001); seed < 1001+count; seed++ {
		first, again := runSeed(t, seed, true).trace, runSeed(t, seed, true).trace
		// If the test gets no processor for a while, the kernel may wake threads of the runtime in another
		// order.
		for tries := 0; tries < 2 && first.String() != again.String(); tries++ {
			t.Logf("seed %d twice: %s and %s part at %s", seed, first, again, first.parts(again))
			again = runSeed(t, seed, true).trace
		}
		require.Equal(t, first.String(), again.String(), "seed %d again", seed)
		if said := fmt.Sprintf("seed %d: trace %s", seed, first); !strings.Contains(out, said) {
			// The same holds for the other process.
			more, err := inAnother(t, "^TestFleet_SameSeedGivesTheSameTrace$", shardVariable+"=0/1")
			require.NoError(t, err, failures(more))
			require.Contains(t, out+more, said, "in another process")
		}
	}
}
