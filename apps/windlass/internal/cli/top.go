package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/pkg/backoff"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// topStale is the age above which the newest sample of a region is not shown as its present load.
const topStale = 90 * time.Second

func (a *app) topCommand() *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use:   "top APP",
		Short: "Show the load of an app in each region now",
		Long: `Top shows the requests, errors, answer times, queue and replicas of an app in each region,
averaged over the last 30 to 60 seconds. "-" means that a value is not known, which is not 0:
requests are counted by gateways, and the queue only for apps with a scaling policy. The load page
of the dashboard shows the last hour.`,
		Example: "  windlass top echo\n  windlass top echo --watch",
		Args:    cobra.ExactArgs(1),
	}
	c.RunE = a.run(func(ctx context.Context, args []string) error { return a.showTop(ctx, a.appPath(args[0]), watch) })
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show the load again every 5 s")
	return c
}

// showTop shows the load once, or until the user stops it. A stream that breaks is opened again.
func (a *app) showTop(ctx context.Context, path string, watch bool) error {
	if !watch {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.timeout)
		defer cancel()
	}
	known := topState{}
	for attempt := 0; ; attempt++ {
		stream, err := a.clients.series.WatchSeries(ctx, &windlassv1.WatchSeriesRequest{App: path, Once: !watch})
		if err == nil {
			for stream.Receive() {
				attempt = 0
				res := stream.Msg()
				known.update(res)
				if watch {
					a.clearScreen()
				}
				if err := a.showMessage(res, func(w *tabwriter.Writer) { known.writeTable(w, res.GetSentAt()) }); err != nil {
					return errors.Join(err, stream.Close())
				}
			}
			err = stream.Err()
			_ = stream.Close()
		}
		switch {
		case ctx.Err() != nil && watch:
			return &ExitError{Code: codeInterrupted}
		case !watch, err != nil && isFinal(err):
			return err
		case err == nil:
			a.infof("the app was deleted")
			return nil
		}
		if attempt == 1 {
			a.infof("the control plane does not answer: trying again until it does")
		}
		if err := backoff.Sleep(ctx, backoff.Policy{Max: 5 * time.Second}.Delay(attempt, nil)); err != nil {
			return &ExitError{Code: codeInterrupted}
		}
	}
}

// topState has the newest two samples of each region, by name.
type topState map[string]*topRegion

type topRegion struct {
	problem string
	samples []*windlassv1.SeriesSample
}

func (t topState) update(res *windlassv1.WatchSeriesResponse) {
	if res.GetReset_() {
		clear(t)
	}
	for _, name := range res.GetRemovedRegions() {
		delete(t, name)
	}
	for _, r := range res.GetRegions() {
		known := t[r.GetRegion()]
		if known == nil {
			known = &topRegion{}
			t[r.GetRegion()] = known
		}
		known.problem = r.GetProblem()
		byTime := map[int64]*windlassv1.SeriesSample{}
		for _, s := range slices.Concat(known.samples, r.GetSamples()) {
			byTime[s.GetAt()] = s
		}
		known.samples = slices.SortedFunc(maps.Values(byTime), func(x, y *windlassv1.SeriesSample) int { return cmp.Compare(x.GetAt(), y.GetAt()) })
		known.samples = known.samples[max(0, len(known.samples)-2):]
	}
}

func (t topState) writeTable(w *tabwriter.Writer, now int64) {
	writeRow(w, "REGION", "REQUESTS/S", "ERRORS", "P95", "FIRST TOKEN", "QUEUE", "READY", "WANTED")
	for _, name := range slices.Sorted(maps.Keys(t)) {
		writeRow(w, append([]any{name}, t[name].cellsOf(now)...)...)
	}
	for _, name := range slices.Sorted(maps.Keys(t)) {
		if r := t[name]; r.problem != "" {
			writeRow(w, "Missing:", r.problem)
		}
	}
	if len(t) == 0 {
		writeRow(w, "-", "the app runs in no region")
	}
}

// cellsOf returns the cells of a region. A value that is not known, or too old, is "-".
func (r *topRegion) cellsOf(now int64) []any {
	out := []any{"-", "-", "-", "-", "-", "-", "-"}
	if len(r.samples) == 0 {
		return out
	}
	newest := r.samples[len(r.samples)-1]
	if now-newest.GetAt()-newest.GetSpanMs() > topStale.Milliseconds() {
		return out
	}
	var requests, failed uint64
	var span int64
	for _, s := range r.samples {
		if s.Requests == nil {
			continue
		}
		requests, failed, span = requests+s.GetRequests(), failed+s.GetErrors(), span+s.GetSpanMs()
		if s.LatencyP95 != nil {
			out[2] = secondsText(s.GetLatencyP95())
		}
		if s.FirstTokenP95 != nil {
			out[3] = secondsText(s.GetFirstTokenP95())
		}
	}
	if span > 0 {
		out[0] = strconv.FormatFloat(float64(requests)*1000/float64(span), 'f', 1, 64)
		out[1] = fmt.Sprintf("%.1f%%", 100*float64(failed)/float64(max(requests, 1)))
	}
	if newest.Queued != nil {
		out[4] = strconv.FormatFloat(newest.GetQueued(), 'f', -1, 64)
	}
	if newest.Ready != nil {
		out[5], out[6] = newest.GetReady(), newest.GetWanted()
	}
	return out
}

func secondsText(v float64) string {
	return time.Duration(v * float64(time.Second)).Round(time.Millisecond).String()
}
