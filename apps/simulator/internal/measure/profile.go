package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync"
)

// profileSeconds is the length of one profile. A profile that is cut short is lost, so a window of unknown
// length is covered by short ones. `go tool pprof` adds up the given files.
const profileSeconds = 2

// Profile collects CPU profiles of other processes, from their /debug/pprof, and of this one, until stop is
// called. urls has the address of each process by the name that its files get.
func Profile(ctx context.Context, dir, label string, urls map[string]string) (stop func() error, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	own, err := os.Create(filepath.Join(dir, label+"-simulator.pprof"))
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if err := pprof.StartCPUProfile(own); err != nil {
		return nil, errors.Join(fmt.Errorf("profile: %w", err), own.Close())
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for name, url := range urls {
		wg.Go(func() {
			for i := 0; ; i++ {
				path := filepath.Join(dir, fmt.Sprintf("%s-%s-%03d.pprof", label, name, i))
				if err := profileOnce(ctx, url, path); err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	return func() error {
		close(done)
		pprof.StopCPUProfile()
		wg.Wait()
		return errors.Join(failed, own.Close())
	}, nil
}

func profileOnce(ctx context.Context, url, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	err = get(ctx, fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", url, profileSeconds), func(body io.Reader) error {
		_, err := io.Copy(f, body)
		return err
	})
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("profile %s: %w", url, errors.Join(err, os.Remove(path)))
	}
	return nil
}
