package certfile

import (
	"log/slog"
	"sync"
	"time"
)

// Files has the certificate files of a program, and a metric of when each certificate ends. It is safe for
// concurrent use. A nil *Files opens files without a log and metrics.
type Files struct {
	log *slog.Logger

	mu   sync.Mutex
	used []used
}

// used is a file that was opened. Two flags may name one file.
type used struct {
	flag, path string
	end        func() (time.Time, bool)
}

// NewFiles returns Files that log files that cannot be read and certificates that have ended.
func NewFiles(log *slog.Logger) *Files { return &Files{log: log} }

func (f *Files) logTo() *slog.Logger {
	if f == nil {
		return nil
	}
	return f.log
}

// Pair opens a certificate and its key. flag, such as "--tls-cert", names the certificate in
// errors.
func (f *Files) Pair(cert, key, flag string) (*Pair, error) {
	p := &Pair{Cert: cert, Key: key, Flag: flag, Log: f.logTo()}
	if _, err := p.Get(); err != nil {
		return nil, err
	}
	f.add(used{flag: flag, path: cert, end: p.expiresAt})
	return p, nil
}

// Pool opens a file of CAs, which flag names in errors.
func (f *Files) Pool(path, flag string) (*Pool, error) {
	p := &Pool{Path: path, Flag: flag, Log: f.logTo()}
	if _, err := p.Get(); err != nil {
		return nil, err
	}
	f.add(used{flag: flag, path: path, end: p.expiresAt})
	return p, nil
}

// add keeps one entry for each flag and file, because clients for several hosts open the same files.
func (f *Files) add(u used) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, known := range f.used {
		if known.flag == u.flag && known.path == u.path {
			return
		}
	}
	f.used = append(f.used, u)
}

func (f *Files) usedFiles() []used {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]used(nil), f.used...)
}
