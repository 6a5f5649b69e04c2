package modelserver

import (
	"context"
	"os"
	"runtime/debug"
	"time"
)

// runFaults injects the faults that need no request: crash, memory and log noise. It returns an *ExitError for a crash,
// and nil when ctx ends.
func (s *Server) runFaults(ctx context.Context) error {
	var hog [][]byte
	for ctx.Err() == nil {
		faults, setAt, changed := s.faults.currentFaults()
		hog = resizeHog(hog, faults.MemoryMiB)
		if err := s.actOut(ctx, faults, setAt, changed); err != nil {
			return err
		}
	}
	return nil
}

// actOut injects a crash and log noise. It returns nil when the faults change or ctx ends.
func (s *Server) actOut(ctx context.Context, faults Faults, setAt time.Time, changed <-chan struct{}) error {
	var crash, log <-chan time.Time
	if faults.CrashAfter > 0 {
		timer := time.NewTimer(time.Until(setAt.Add(time.Duration(faults.CrashAfter))))
		defer timer.Stop()
		crash = timer.C
	}
	if faults.LogLines > 0 {
		ticker := time.NewTicker(time.Second / time.Duration(faults.LogLines))
		defer ticker.Stop()
		log = ticker.C
	}
	for line := 1; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			return nil
		case err := <-s.crashes:
			return err
		case <-crash:
			return &ExitError{Code: faults.ExitCode, Reason: "crashed after " + time.Duration(faults.CrashAfter).String()}
		case <-log:
			s.log.Info("noise (injected fault)", "line", line)
			line++
		}
	}
}

// resizeHog returns mib chunks of one MiB. It writes every page, because the host does not allocate untouched memory.
func resizeHog(hog [][]byte, mib int) [][]byte {
	page := os.Getpagesize()
	for len(hog) < mib {
		chunk := make([]byte, 1<<20)
		for i := 0; i < len(chunk); i += page {
			chunk[i] = 1
		}
		hog = append(hog, chunk)
	}
	if len(hog) > mib {
		hog = append([][]byte(nil), hog[:mib]...)
		debug.FreeOSMemory()
	}
	return hog
}
