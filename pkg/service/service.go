// Package service runs the parts of one program as one: they start together, the
// first that fails ends them all, and a program that was told to stop stops
// within a bounded time or says which part did not.
//
//	SIGTERM ──> SignalContext ──┐
//	first component that fails ─┴─> every component's ctx ends
//	                                 all return        -> Run returns
//	                                 grace passes      -> Run names the rest
//	a second SIGTERM kills at once, whatever the parts are doing
//
// Components end on their context and nothing else. Run never abandons a
// component silently: after grace its error names every one still running, and
// main exits, which ends them.
package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Component is one part of a program.
type Component struct {
	// Name appears in logs and errors; unique within a program.
	Name string
	// Run works until ctx ends and then returns, with nil or with the context's
	// error. Any other error ends the program.
	Run func(ctx context.Context) error
	// MayEnd says that Run may return nil while the rest goes on (a migration, a
	// warm-up). Otherwise that ends the program with an error: a part that
	// quietly went away is a program that quietly does not do its work.
	MayEnd bool
}

// Run runs all components until ctx ends, one of them fails, or every one of
// them ended in order. It cancels those that are left and waits for them at most
// grace.
//
// It returns nil after a clean stop; else the first failure, joined by those
// that followed and by the names of components that were still running when
// grace ended.
func Run(ctx context.Context, log *slog.Logger, grace time.Duration, components ...Component) error {
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	type exit struct {
		name string
		err  error
	}
	exits := make(chan exit, len(components)) // room for all: none blocks after we left
	left := make([]string, 0, len(components))
	for _, c := range components {
		left = append(left, c.Name)
		go func() { exits <- exit{c.Name, runOne(running, c)} }()
	}

	var errs []error
	ended := running.Done()
	var expired <-chan time.Time
	for len(left) > 0 {
		select {
		case e := <-exits:
			i := slices.Index(left, e.name)
			left = slices.Delete(left, i, i+1)
			if e.err != nil {
				errs = append(errs, e.err)
				cancel(e.err)
			}
		case <-ended:
			ended = nil
			cause := "a component failed" // which and why is ours to return
			if ctx.Err() != nil {
				cause = context.Cause(ctx).Error()
			}
			log.Info("stopping", "cause", cause, "grace", grace)
			expired = time.After(grace)
		case <-expired:
			slices.Sort(left)
			errs = append(errs, fmt.Errorf("still running %v after the stop: %s", grace, strings.Join(left, ", ")))
			return errors.Join(errs...)
		}
	}
	return errors.Join(errs...)
}

// runOne returns nil only for an end that is in order.
func runOne(ctx context.Context, c Component) error {
	err := c.Run(ctx)
	switch {
	case ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))):
		return nil
	case err != nil:
		return fmt.Errorf("component %s: %w", c.Name, err)
	case !c.MayEnd:
		return fmt.Errorf("component %s: ended by itself", c.Name)
	default:
		return nil
	}
}

// SignalContext returns a context that ends at the first SIGTERM or SIGINT, with
// the signal in its cause. From then on both have their default effect again: a
// second one kills the process. The function releases signals and context.
func SignalContext(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		defer signal.Stop(signals)
		select {
		case s := <-signals:
			cancel(fmt.Errorf("signal: %s", s))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}
