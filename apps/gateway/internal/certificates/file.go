package certificates

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// check is how often the files are looked at.
const check = 10 * time.Second

// File is a certificate that is read from files, and again when they change, so that who
// renews it need not tell us. A pair that cannot be read leaves the one before. It is safe
// for concurrent use.
type File struct {
	Cert, Key string
	Log       *slog.Logger

	mu      sync.Mutex
	checked time.Time
	stamp   [2]time.Time
	current *tls.Certificate
}

// Get returns it, with its Leaf.
func (c *File) Get() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.current != nil && now.Sub(c.checked) < check {
		return c.current, nil
	}
	c.checked = now
	stamp := [2]time.Time{modified(c.Cert), modified(c.Key)}
	if c.current != nil && stamp == c.stamp {
		return c.current, nil
	}
	pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		err = fmt.Errorf("certificate %s with key %s: %w", c.Cert, c.Key, err)
		if c.current == nil {
			return nil, err
		}
		c.Log.Error("certificate cannot be read; the one before is used", "error", err)
		return c.current, nil
	}
	c.current, c.stamp = &pair, stamp
	return c.current, nil
}

func modified(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
