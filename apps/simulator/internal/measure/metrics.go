package measure

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Metrics are the samples of a page in Prometheus' text format, by name and labels as on the page:
// `windlass_feed_snapshots_total{cause="fork"}`.
type Metrics map[string]float64

// Sum returns the sum of all samples of a metric whose labels contain text.
func (m Metrics) Sum(name, text string) float64 {
	sum := 0.0
	for key, value := range m {
		metric, labels, _ := strings.Cut(key, "{")
		if metric == name && strings.Contains(labels, text) {
			sum += value
		}
	}
	return sum
}

// scrapeTimeout is long enough for a program that uses all processors.
const scrapeTimeout = 20 * time.Second

var plainHTTP = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// Scrape reads a page of metrics.
func Scrape(ctx context.Context, url string) (Metrics, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	out := Metrics{}
	err := get(ctx, url, func(body io.Reader) error {
		lines := bufio.NewScanner(body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			line := lines.Text()
			i := strings.LastIndexByte(line, ' ')
			if i < 0 || strings.HasPrefix(line, "#") {
				continue
			}
			value, err := strconv.ParseFloat(line[i+1:], 64)
			if err != nil {
				return fmt.Errorf("line %q: %w", line, err)
			}
			out[line[:i]] = value
		}
		return lines.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("scrape %s: %w", url, err)
	}
	return out, nil
}

func get(ctx context.Context, url string, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := plainHTTP.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return read(resp.Body)
}
