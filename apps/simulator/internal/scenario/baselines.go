package scenario

import (
	"context"
	"errors"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/bare"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
)

// Baselines measures what the parts under Windlass do alone on this machine, so that the figures of other
// scenarios can be compared with these limits.
//
// What limits it: the processor, which each part shares with the client that measures it. Feed transactions
// also wait for the disk, unless the database is relaxed.
type Baselines struct {
	Window  time.Duration `help:"How long each is measured." default:"5s"`
	Writers int           `help:"Connections that write to the database at once." default:"8"`
	Batch   int           `help:"Rows of one upsert." default:"1000"`
	Regions int           `help:"Regions that a transaction of the feed touches." default:"10"`
	Senders int           `help:"Clients of Restate." default:"16"`
	Streams int           `help:"Connect streams." default:"10"`
}

// Deadline implements Scenario.
func (s *Baselines) Deadline() time.Duration { return 5*time.Minute + 8*s.Window }

// Run implements Scenario.
func (s *Baselines) Run(ctx context.Context, env Env) (err error) {
	err = requirePositive("--window", s.Window, "--writers", s.Writers, "--batch", s.Batch, "--regions", s.Regions, "--senders", s.Senders, "--streams", s.Streams)
	if err != nil {
		return err
	}
	if s.Batch > 3000 {
		return errors.New("--batch: use at most 3000, because a statement has a maximum number of values")
	}
	env.recordSizes("window", s.Window.String(), "writers", s.Writers, "batch", s.Batch, "regions", s.Regions, "senders", s.Senders, "streams", s.Streams)
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: s.Regions, Idle: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	regions, err := w.DB.Strings(ctx, "SELECT id FROM regions ORDER BY id")
	if err != nil {
		return err
	}
	_, env.Result.Parts, err = measureWindow(ctx, w, func() error { return s.measureLayers(ctx, env, w, regions) })
	return err
}

func (s *Baselines) measureLayers(ctx context.Context, env Env, w *testbed.Testbed, regions []string) error {
	note := func(name string, value float64, unit string, err error) error {
		if err == nil {
			w.Progressf("%s: %.0f", unit, value)
			env.Result.Figure(name, value, unit)
		}
		return err
	}
	rows, err := w.DB.Upserts(ctx, s.Window, min(s.Writers, 4), s.Batch)
	if err := note("upserts_per_s", rows, "guarded upserts, MariaDB alone", err); err != nil {
		return err
	}
	transactions, err := w.DB.FeedTransactions(ctx, s.Window, s.Writers, regions)
	if err := note("feed_transactions_per_s", transactions, "transactions of the feed, MariaDB alone", err); err != nil {
		return err
	}
	env.Result.Figure("feed_changes_per_s", transactions*float64(len(regions)), "changes in these transactions")
	ingress, admin := w.Stack.RestateURLs()
	invocations, err := bare.Invocations(ctx, ingress, admin, s.Window, s.Senders, 64)
	if err := note("invocations_per_s", invocations, "invocations, Restate alone", err); err != nil {
		return err
	}
	frames, streams, err := bare.Frames(ctx, s.Window, s.Streams)
	if err := note("frames_per_s", frames, "empty frames on Connect streams", err); err != nil {
		return err
	}
	return note("streams_per_s", streams, "Connect streams opened", nil)
}
