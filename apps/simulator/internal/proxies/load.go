package proxies

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/instance"
	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
)

// Seen is what clients saw.
type Seen struct {
	// Events is how many events of streams came, and 0 for requests without streams.
	Events int
	// PerSecond is the rate of answers, or of events of streams.
	PerSecond float64
	// P99 is the 99th percentile of the time of an answer, or of a whole stream.
	P99 time.Duration
}

// Answers sends requests that are answered at once, with wrk, over a number of connections.
func (p *Proxy) Answers(ctx context.Context, window time.Duration, connections int) (Seen, error) {
	seconds := max(1, int(window.Round(time.Second)/time.Second))
	out, err := exec.CommandContext(ctx, "wrk", "--latency", "-t1", "-c"+strconv.Itoa(connections), fmt.Sprintf("-d%ds", seconds),
		"-H", "Host: "+Host, "http://"+p.Address+"/v1/chat/completions").CombinedOutput()
	if err != nil {
		return Seen{}, fmt.Errorf("wrk: %w: %.300s", err, out)
	}
	return readWrk(out)
}

// readWrk parses the figures in wrk's output. Answers with an error status or without an answer are an error.
func readWrk(out []byte) (s Seen, err error) {
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 2 && fields[0] == "Requests/sec:":
			s.PerSecond, err = strconv.ParseFloat(fields[1], 64)
		case len(fields) == 2 && fields[0] == "99%":
			s.P99, err = time.ParseDuration(fields[1])
		case strings.Contains(line, "Non-2xx") || strings.Contains(line, "Socket errors"):
			err = fmt.Errorf("requests failed: %s", strings.TrimSpace(line))
		}
		if err != nil {
			return s, fmt.Errorf("wrk: %w", err)
		}
	}
	if s.PerSecond == 0 || s.P99 == 0 {
		return s, fmt.Errorf("wrk: no figures in %.300q", out)
	}
	return s, nil
}

// Events reads streams to their end, a number of them at the same time. A stream that has another number of events is an error.
func (p *Proxy) Events(ctx context.Context, window time.Duration, streams, events int) (Seen, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: streams, DisableCompression: true}}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	var times measure.Durations
	var failed error
	seen := 0
	begin := time.Now()
	end := begin.Add(window)
	var all sync.WaitGroup
	for range streams {
		all.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				at := time.Now()
				n, err := readAnswer(ctx, client, "http://"+p.Streams+"/stream")
				if err == nil && n != events {
					err = fmt.Errorf("a stream has %d of %d events", n, events)
				}
				mu.Lock()
				seen += n
				times.Add(time.Since(at))
				failed = errors.Join(failed, err)
				stop := failed != nil
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	all.Wait()
	if failed != nil {
		return Seen{}, failed
	}
	return Seen{Events: seen, PerSecond: float64(seen) / time.Since(begin).Seconds(), P99: times.Quantile(0.99)}, ctx.Err()
}

// readAnswer reads one answer to its end, either a stream or an immediate answer. It returns how many events a stream has.
func readAnswer(ctx context.Context, client *http.Client, url string) (events int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	if req.Host = Host; strings.HasSuffix(url, "/stream") {
		req.Host = streamsHost
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("it answers %s", res.Status)
	}
	in := bufio.NewReader(res.Body)
	last := ""
	for {
		line, err := in.ReadString('\n')
		if line = strings.TrimSpace(line); line != "" {
			last = line
			if strings.HasPrefix(line, "data:") {
				events++
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
	}
	if req.Host == streamsHost && last != "data: [DONE]" || last == "" {
		return 0, fmt.Errorf("it ends with %q", last)
	}
	return events, nil
}

// serveStreams serves an instance that answers each request with a number of events, as fast as possible, each
// written on its own.
func serveStreams(ctx context.Context, events int) (at string, stop func() error, err error) {
	event := []byte(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"token "}}]}` + "\n\n")
	done := []byte("data: [DONE]\n\n")
	return instance.Serve(ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(w)
		for n := range events {
			piece := event
			if n == events-1 {
				piece = done
			}
			if _, err := io.Copy(w, bytes.NewReader(piece)); err != nil || flush.Flush() != nil || r.Context().Err() != nil {
				return
			}
		}
	}))
}
