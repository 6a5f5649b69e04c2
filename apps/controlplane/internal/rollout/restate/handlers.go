package restate

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"time"

	sdk "github.com/restatedev/sdk-go"
	"github.com/restatedev/sdk-go/server"
)

const (
	stepHandler  = "Step"
	timerHandler = "Timer"
	stateKey     = "timer"
)

// timer is the whole state of an app's object. Times are unix ms.
type timer struct {
	// Nonce of the live delayed send, which arrives at Armed; 0 for none.
	Nonce int64 `json:"nonce"`
	Armed int64 `json:"armed"`
	// Due is the look that is owed; 0 for none.
	Due int64 `json:"due"`
}

// looked is what one durable run of the step answers.
type looked struct {
	Next int64 `json:"next"`
	At   int64 `json:"at"`
}

// retention of finished invocations: long enough to look at what just went
// wrong, short enough not to fill a disk at hundreds of steps a second.
const retention = 2 * time.Minute

func newServer(d *Driver) (*http.Server, error) {
	object := sdk.NewObject(d.cfg.Service,
		sdk.WithDocumentation("Workflow of an app, keyed by its id. The truth is in the control plane's database."),
		sdk.WithJournalRetention(retention),
		sdk.WithIdempotencyRetention(retention),
		sdk.WithInvocationRetryPolicy(
			sdk.WithInitialRetryInterval(200*time.Millisecond),
			sdk.WithRetryIntervalFactor(2),
			// Within the ten seconds in which all is to be well again after an outage.
			sdk.WithMaxRetryInterval(4*time.Second),
			// Five hundred years of retries. Should they ever end, the key is given
			// free, not paused: the app's wake-up row starts over.
			sdk.WithMaxRetryAttempts(math.MaxInt32),
			sdk.KillOnMaxAttempts(),
		),
	)
	object.Handler(stepHandler, sdk.NewObjectHandler(d.handleStep))
	object.Handler(timerHandler, sdk.NewObjectHandler(d.handleTimer))

	endpoint := server.NewRestate().WithLogger(quiet{d.cfg.Log.Handler()}, true).Bind(object)
	calls, err := endpoint.Handler()
	if err != nil {
		return nil, fmt.Errorf("restate: make the endpoint: %w", err)
	}
	mux := http.NewServeMux()
	// Whoever may have our old address is told apart from us by this.
	mux.HandleFunc("GET "+d.endpoint.Path+identityPath, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(d.identity())) // a caller that is gone needs no answer
	})
	mux.HandleFunc(d.endpoint.Path+"/", func(w http.ResponseWriter, r *http.Request) {
		r.RequestURI = strings.TrimPrefix(r.RequestURI, d.endpoint.Path) // what the SDK routes by
		calls(w, r)
	})
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler: mux, Protocols: &protocols, ReadHeaderTimeout: requestTimeout,
		ErrorLog: slog.NewLogLogger(d.cfg.Log.Handler(), slog.LevelDebug),
	}, nil
}

func (d *Driver) handleStep(ctx sdk.ObjectContext, _ sdk.Void) (sdk.Void, error) {
	t, err := sdk.Get[timer](ctx, stateKey)
	if err != nil {
		return sdk.Void{}, err
	}
	return sdk.Void{}, d.look(ctx, t)
}

func (d *Driver) handleTimer(ctx sdk.ObjectContext, nonce int64) (sdk.Void, error) {
	t, err := sdk.Get[timer](ctx, stateKey)
	switch {
	case err != nil:
		return sdk.Void{}, err
	case nonce != t.Nonce:
		return sdk.Void{}, nil // replaced since it was sent
	case t.Due == 0:
		sdk.Clear(ctx, stateKey)
		return sdk.Void{}, nil
	case t.Due > t.Armed:
		// Kept when a later look was asked for. It came at Armed at the earliest, so
		// the rest of the way is at most the difference.
		wait := time.Duration(t.Due-t.Armed) * time.Millisecond
		d.arm(ctx, timer{Nonce: t.Nonce + 1, Armed: t.Due, Due: t.Due}, wait)
		return sdk.Void{}, nil
	}
	t.Armed = 0
	return sdk.Void{}, d.look(ctx, t)
}

// look runs the step and schedules the next look.
func (d *Driver) look(ctx sdk.ObjectContext, t timer) error {
	id := sdk.Key(ctx)
	// Only run's own context is used inside: the outer one is for the journal.
	l, err := sdk.Run(ctx, func(run sdk.RunContext) (looked, error) {
		next, err := d.cfg.Step(run, id)
		d.note(run, err)
		return looked{Next: next, At: time.Now().UnixMilli()}, err
	}, sdk.WithName("step"))
	if err != nil {
		return err
	}
	live := t.Armed > l.At // a timer of an earlier step is still on its way
	switch {
	case l.Next == 0 && !live:
		sdk.Clear(ctx, stateKey)
	case l.Next == 0:
		t.Due = 0
		sdk.Set(ctx, stateKey, t)
	case live && t.Armed <= l.Next:
		t.Due = l.Next
		sdk.Set(ctx, stateKey, t)
	default:
		wait := time.Duration(max(0, l.Next-l.At)) * time.Millisecond
		d.arm(ctx, timer{Nonce: t.Nonce + 1, Armed: l.Next, Due: l.Next}, wait)
	}
	return nil
}

// note tells of the first step that fails and of the first that passes again.
func (d *Driver) note(ctx context.Context, err error) {
	switch {
	case err != nil && ctx.Err() == nil && !d.failing.Swap(true):
		d.cfg.Log.Warn("steps fail, will be tried again", "error", err)
	case err == nil && d.failing.Load() && d.failing.Swap(false):
		d.cfg.Log.Info("steps pass again")
	}
}

// arm sends the one live timer.
func (d *Driver) arm(ctx sdk.ObjectContext, t timer, wait time.Duration) {
	sdk.Set(ctx, stateKey, t)
	sdk.ObjectSend(ctx, d.cfg.Service, sdk.Key(ctx), timerHandler).Send(t.Nonce, sdk.WithDelay(wait))
}

// quiet takes the SDK's records down to debug: it has one for each call's begin
// and end, and an error for each of a thousand retries. Restate itself keeps the
// last failure of an invocation.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return q.Handler.Handle(ctx, r)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }

func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }
