// Package service runs the parts of one program. They start together, and the first failure ends all of them. A
// program that gets a signal to stop stops within a limited time, or names the parts that did not stop.
//
//	SIGTERM ──> SignalContext ──┐
//	first component that fails ─┴─> every component's ctx ends
//	                                 all return        -> Run returns
//	                                 grace passes      -> Run names the rest
//	a second SIGTERM kills the program at once
//
// Components end when their context ends. Run never abandons a component silently. After grace, its error names
// every component that still runs. Then main exits, which ends these components.
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
	// Name is the name in logs and errors, unique within a program.
	Name string
	// Run works until ctx ends, and then returns nil or the context's error. Any other error ends the
	// program.
	Run func(ctx context.Context) error
	// MayEnd allows Run to return nil while the other components continue, for example after a migration or a
	// warm-up. Otherwise a nil return ends the program with an error, because a program without one of its parts
	// would silently not do its work.
	MayEnd bool
}

// Run runs all components until ctx ends, a component fails, or all components have ended without an error. It
// cancels the remaining components and waits for them, at most for grace.
//
// It returns nil after a clean stop. Otherwise it joins all failures and the names of components that still
// ran when grace ended.
func Run(ctx context.Context, log *slog.Logger, grace time.Duration, components ...Component) error {
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	type exit struct {
		name string
		err  error
	}
	exits := make(chan exit, len(components)) // the buffer has room for all, so that no component blocks after Run has returned
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
			cause := "a component failed" // the returned error has the component and the reason
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

// runOne runs one component, and returns nil only if the component was allowed to end.
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

// SignalContext returns a context that ends at the first SIGTERM or SIGINT, with the signal in its cause.
// After that, both signals have their default effect again, so that a second signal kills the process. The returned
// function releases the signals and the context.
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
