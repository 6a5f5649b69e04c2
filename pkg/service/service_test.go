package service

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var quiet = slog.New(slog.DiscardHandler)

func untilDone(name string) Component {
	return Component{Name: name, Run: func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}}
}

func TestStop_IsCleanWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, cancel)
		slow := Component{Name: "slow", Run: func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(5 * time.Second)
			return nil
		}}
		start := time.Now()
		require.NoError(t, Run(ctx, quiet, 10*time.Second, untilDone("api"), slow))
		require.Equal(t, time.Hour+5*time.Second, time.Since(start))
	})
}

func TestFailure_FirstStopsTheRestAndIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost, broken := errors.New("database lost"), errors.New("flush failed")
		err := Run(t.Context(), quiet, time.Minute,
			untilDone("api"),
			Component{Name: "store", Run: func(context.Context) error { return lost }},
			Component{Name: "report", Run: func(ctx context.Context) error {
				<-ctx.Done()
				return broken
			}},
		)
		require.ErrorIs(t, err, lost)
		require.ErrorIs(t, err, broken)
		require.EqualError(t, err, "component store: database lost\ncomponent report: flush failed")
	})
}

func TestComponent_QuietEndStopsTheProgram(t *testing.T) {
	err := Run(t.Context(), quiet, time.Minute, untilDone("api"),
		Component{Name: "tailer", Run: func(context.Context) error { return nil }})
	require.EqualError(t, err, "component tailer: ended by itself")
}

func TestComponent_MayEndAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := Component{Name: "warm-up", MayEnd: true, Run: func(context.Context) error { return nil }}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		require.NoError(t, Run(ctx, quiet, time.Minute, done, untilDone("api")))
		require.Equal(t, time.Hour, time.Since(start))

		require.NoError(t, Run(t.Context(), quiet, time.Minute, done, done))

		failed := errors.New("no")
		done.Run = func(context.Context) error { return failed }
		require.ErrorIs(t, Run(t.Context(), quiet, time.Minute, done, untilDone("api")), failed)
	})
}

func TestStop_NamesWhatRunsAfterTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		release := make(chan struct{})
		stuck := func(name string) Component {
			return Component{Name: name, Run: func(context.Context) error {
				<-release
				return nil
			}}
		}
		start := time.Now()
		err := Run(ctx, quiet, 30*time.Second, stuck("watch"), untilDone("api"), stuck("ingest"))
		require.EqualError(t, err, "still running 30s after the stop: ingest, watch")
		require.Equal(t, 31*time.Second, time.Since(start))
		close(release) // the remaining components end without blocking, because synctest would report a deadlock
	})
}

// TestMain runs the tests, or the program to which the signal test sends signals.
func TestMain(m *testing.M) {
	if os.Getenv("SERVICE_TEST_CHILD") == "" {
		os.Exit(m.Run())
	}
	ctx, stop := SignalContext(context.Background())
	defer stop()
	_, _ = fmt.Fprintln(os.Stdout, "ready")
	<-ctx.Done()
	_, _ = fmt.Fprintln(os.Stdout, context.Cause(ctx))
	select {}
}

func TestSignal_FirstEndsTheContextAndSecondKills(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		child := exec.CommandContext(t.Context(), os.Args[0])
		child.Env = append(os.Environ(), "SERVICE_TEST_CHILD=1")
		out, err := child.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, child.Start())
		lines := bufio.NewScanner(out)

		require.True(t, lines.Scan())
		require.Equal(t, "ready", lines.Text())
		require.NoError(t, child.Process.Signal(sig))
		require.True(t, lines.Scan())
		require.Equal(t, "signal: "+sig.String(), lines.Text())

		// The handler is removed just after the context ends. It ignores a signal
		// before that, so send signals until the process has ended.
		go func() {
			for child.Process.Signal(sig) == nil {
				time.Sleep(time.Millisecond)
			}
		}()
		_, err = io.Copy(io.Discard, out)
		require.NoError(t, err)
		var exit *exec.ExitError
		require.ErrorAs(t, child.Wait(), &exit)
		require.Equal(t, sig, exit.Sys().(syscall.WaitStatus).Signal())
	}
}

func TestStop_EndsTheSignalContext(t *testing.T) {
	ctx, stop := SignalContext(t.Context())
	require.NoError(t, ctx.Err())
	stop()
	require.ErrorIs(t, ctx.Err(), context.Canceled)
}
