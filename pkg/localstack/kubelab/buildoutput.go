package kubelab

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"time"
)

// reportEvery is the interval of progress reports of a build, as in .ci/build without a terminal.
const reportEvery = 15 * time.Second

// buildOutput parses the output of `go build -v`, with a line for each started package and each fetched
// module. It keeps other lines for errors. It is safe for concurrent use.
type buildOutput struct {
	mu       sync.Mutex
	line     []byte // the incomplete last line
	packages int
	total    int // maximum number of packages to build
	fetched  int
	building bool // whether the last line named a package
	others   strings.Builder
}

// Write implements io.Writer.
func (o *buildOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.line = append(o.line, p...)
	for {
		line, after, ok := bytes.Cut(o.line, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		o.take(string(line))
		o.line = after
	}
}

func (o *buildOutput) take(line string) {
	switch {
	case strings.HasPrefix(line, "go: downloading "):
		o.fetched++
		o.building = false
	case line == "" || strings.ContainsAny(line, " \t"):
		o.others.WriteString(line + "\n")
	default:
		o.packages++
		o.building = true
	}
}

// expectPackages sets the maximum number of packages: those that the build cache lacks.
func (o *buildOutput) expectPackages(total int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.total = total
}

// progressText returns how far the build is, or "" before it has begun.
func (o *buildOutput) progressText() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.building:
		return fmt.Sprintf("building kubelab: %d of at most %d packages", o.packages, o.total)
	case o.fetched > 0:
		return fmt.Sprintf("fetching modules: %d so far", o.fetched)
	}
	return ""
}

// otherLines returns all lines that name neither a package nor a download.
func (o *buildOutput) otherLines() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.others.String() + string(o.line)
}

// reportProgress reports the progress of the build every reportEvery until stop is called.
func (o *buildOutput) reportProgress(progress func(string)) (stop func()) {
	began, done := time.Now(), make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(reportEvery)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				if text := o.progressText(); text != "" {
					progress(fmt.Sprintf("%s, %d s", text, int(time.Since(began).Seconds())))
				}
			}
		}
	})
	return func() {
		close(done)
		running.Wait()
	}
}
