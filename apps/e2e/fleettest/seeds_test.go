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
	// of is small enough for hundreds of fleets in a minute, and large enough for every
	// replica to hold streams and for rollouts over regions that fare differently.
	of = size{replicas: 3, regions: 6, apps: 5}
	// storm is how long things break.
	storm = 90 * time.Second
)

// seeds is how many fleets run; WINDLASS_FLEET_SEED runs one.
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

func TestFleet_ConvergesWhateverBreaks(t *testing.T) { //nolint:tparallel // beside other tests it would not have its processor
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
		routed, scaled, pooled := false, false, false
		for seed := first + i; seed < first+count; seed += n {
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
				c := runSeed(t, seed, false).check
				routed, scaled, pooled = routed || c.sawRoutes, scaled || c.sawScaling > 3, pooled || c.sawPools > 1
			})
		}
		require.True(t, routed, "the checker saw no routes in any fleet")
		require.True(t, scaled, "the checker saw hardly any scaling in any fleet")
		require.True(t, pooled, "the checker saw hardly any versions of pools go live in any fleet")
		return
	}
	// One P each, so one process for each CPU.
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

// inAnother runs tests of this binary in a process of their own.
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
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) } // it tells where it hangs
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// passed are the lines of a verbose run that tell nothing.
var passed = regexp.MustCompile(`(?m)^ *(=== (RUN|CONT|PAUSE|NAME) .*|--- PASS: .*|PASS)\n`)

func failures(out string) string { return passed.ReplaceAllString(out, "") }

// runSeed runs a fleet, which must have broken nothing.
func runSeed(t *testing.T, seed uint64, keepTrace bool) *fleet {
	w := run(t, seed, of, keepTrace)
	for _, v := range w.check.broken() {
		t.Errorf("%s\n\nthis fleet alone: WINDLASS_FLEET_SEED=%d go test -v -run WhateverBreaks ./apps/e2e/fleettest", v, seed)
	}
	t.Logf("seed %d: trace %s", seed, w.trace)
	return w
}

func run(t *testing.T, seed uint64, of size, keepTrace bool) *fleet {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	// Twice, and every pool is empty.
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
					t.Logf("seed %d may go otherwise the next time: %v", seed, err)
				}
			}()
		}
		w = newFleet(t, seed, of, pinned, keepTrace)
		defer w.stop()
		go w.check.watch()
		w.rage(of, storm)
		w.heal()
		w.converge()
	})
	return w
}

// warm runs a fleet without checks, so that later fleets do not include what a process does
// only once.
func warm(t *testing.T) {
	of := size{replicas: 2, regions: 2, apps: 3}
	t.Run("warm", func(t *testing.T) { run(t, 0, of, false) })
}

// TestFleet_SameSeedGivesTheSameTrace runs each seed twice here and once in another process,
// where maps hash otherwise: what is ranged over in their order comes in another one there.
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
		// On a machine that has no processor for us for a while, the kernel may wake
		// threads of the runtime in an order of its own.
		for tries := 0; tries < 2 && first.String() != again.String(); tries++ {
			t.Logf("seed %d twice: %s and %s part at %s", seed, first, again, first.parts(again))
			again = runSeed(t, seed, true).trace
		}
		require.Equal(t, first.String(), again.String(), "seed %d again", seed)
		if said := fmt.Sprintf("seed %d: trace %s", seed, first); !strings.Contains(out, said) {
			// That goes for the other process, too.
			more, err := inAnother(t, "^TestFleet_SameSeedGivesTheSameTrace$", shardVariable+"=0/1")
			require.NoError(t, err, failures(more))
			require.Contains(t, out+more, said, "in another process")
		}
	}
}
