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

	"github.com/windlass-run/windlass/pkg/conns"
)

const (
	stepHandler = "Step"
	// timerHandler accepts delayed sends of older builds, and ignores them: timers are rows now.
	timerHandler = "Timer"
)

// retention is how long Restate keeps finished invocations: long enough to inspect a recent
// failure, short enough not to fill a disk at hundreds of steps a second.
const retention = 2 * time.Minute

// maxInvocation bounds the body of a call from Restate, in bytes. It has a key and a journal,
// which is short because the handlers write no entries.
const maxInvocation = 1 << 20

func newServer(d *Driver) (*http.Server, error) {
	object := sdk.NewObject(d.cfg.Service,
		sdk.WithDocumentation("Workflow of an app, keyed by its id. The truth is in the control plane's database."),
		sdk.WithJournalRetention(retention),
		sdk.WithIdempotencyRetention(retention),
		sdk.WithInvocationRetryPolicy(
			sdk.WithInitialRetryInterval(200*time.Millisecond),
			sdk.WithRetryIntervalFactor(2),
			// The control plane has to recover within 10 s after an outage.
			sdk.WithMaxRetryInterval(4*time.Second),
			// There is no limit in practice. If retries end all the same, the invocation is killed and the key is not
			// paused, so the app's wake-up row starts a new one.
			sdk.WithMaxRetryAttempts(math.MaxInt32),
			sdk.KillOnMaxAttempts(),
		),
	)
	object.Handler(stepHandler, sdk.NewObjectHandler(d.handleStep))
	object.Handler(timerHandler, sdk.NewObjectHandler(d.handleTimer))

	endpoint := server.NewRestate().WithLogger(quiet{d.cfg.Log.Handler()}, true).Bind(object)
	if len(d.cfg.IdentityKeys) > 0 {
		endpoint = endpoint.WithIdentityV1(d.cfg.IdentityKeys...)
	}
	calls, err := endpoint.Handler()
	if err != nil {
		return nil, fmt.Errorf("restate: make the endpoint: %w", err)
	}
	mux := http.NewServeMux()
	// The answer distinguishes this service from another process at an address that it had.
	mux.HandleFunc("GET "+d.endpoint.Path+identityPath, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(d.identityOf())) // a caller that is gone needs no answer
	})
	mux.HandleFunc(d.endpoint.Path+"/", func(w http.ResponseWriter, r *http.Request) {
		r.RequestURI = strings.TrimPrefix(r.RequestURI, d.endpoint.Path) // what the SDK routes by
		calls(w, r)
	})
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	return &http.Server{
		TLSConfig: d.cfg.TLS.Clone(), // the server adds its protocols
		Handler:   conns.Handler(http.MaxBytesHandler(mux, maxInvocation)), ConnContext: conns.Context, Protocols: &protocols, ReadHeaderTimeout: requestTimeout,
		ErrorLog: slog.NewLogLogger(d.cfg.Log.Handler(), slog.LevelDebug),
	}, nil
}

// warmUp makes the SDK compile its core, which is WebAssembly. Otherwise the first invocation
// after a restart would wait for that. warmUp makes a call with a protocol version that does not
// exist, so that nothing is invoked.
func (d *Driver) warmUp(ctx context.Context) error {
	target := d.endpoint.JoinPath("invoke", d.cfg.Service, stepHandler)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), http.NoBody)
	if err != nil {
		return fmt.Errorf("restate: warm up: %w", err)
	}
	req.RequestURI, req.ProtoMajor = target.Path, 2
	req.Header.Set("Content-Type", "application/vnd.restate.invocation.v0")
	d.server.Handler.ServeHTTP(nowhere{}, req)
	close(d.warmed)
	return nil
}

// nowhere discards an answer.
type nowhere struct{}

func (nowhere) Header() http.Header         { return http.Header{} }
func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) WriteHeader(int)             {}

// handleStep runs the step without a journal entry. The step is safe to repeat, so an entry
// would only be one more durable write.
func (d *Driver) handleStep(ctx sdk.ObjectContext, _ sdk.Void) (sdk.Void, error) {
	err := d.cfg.Step(ctx, sdk.Key(ctx))
	d.noteStep(ctx, err)
	return sdk.Void{}, err
}

func (d *Driver) handleTimer(ctx sdk.ObjectContext, _ int64) (sdk.Void, error) {
	sdk.ClearAll(ctx)
	return sdk.Void{}, nil
}

// noteStep logs the first step that fails and the first step that succeeds after it. The latter also makes Restate retry
// the waiting invocations.
func (d *Driver) noteStep(ctx context.Context, err error) {
	switch {
	case err != nil && ctx.Err() == nil && !d.failing.Swap(true):
		d.cfg.Log.Warn("steps fail; Restate retries them", "error", err)
	case err == nil && d.failing.Load() && d.failing.Swap(false):
		d.cfg.Log.Info("steps succeed again")
		d.recovered.Store(true)
		d.Reconcile()
	}
}

// quiet lowers the SDK's log records to debug. The SDK logs the begin and the end of each
// call, and an error for each retry. Restate itself keeps the last failure of an invocation.
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
