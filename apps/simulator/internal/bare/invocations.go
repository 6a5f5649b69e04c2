package bare

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	sdk "github.com/restatedev/sdk-go"
	"github.com/restatedev/sdk-go/server"

	"github.com/windlass-run/windlass/pkg/ident"
)

// Invocations returns how many invocations per second Restate alone makes of a virtual object with the given
// number of keys. Each invocation is sent, waits for its key, and runs a handler that does nothing. That is
// the cost of a workflow's step before the step does any work.
func Invocations(ctx context.Context, ingress, admin string, window time.Duration, senders, keys int) (perSecond float64, err error) {
	var done atomic.Int64
	steps, err := serve(ctx, ingress, admin, senders, func(context.Context, string) error {
		done.Add(1)
		return nil
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, steps.close()) }()
	send := func(ctx context.Context, i int64) error {
		if err := steps.send(ctx, fmt.Sprintf("key-%d", i%int64(keys))); err != nil {
			return err
		}
		// The number of calls that are sent and not yet done is bounded, so that the rate is that of
		// invocations and not of sends.
		for i-done.Load() > int64(8*senders) && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		return nil
	}
	begin := time.Now()
	if _, err := callRate(ctx, window, senders, send); err != nil {
		return 0, err
	}
	return float64(done.Load()) / time.Since(begin).Seconds(), nil
}

// object serves a virtual object with one handler to a Restate server.
type object struct {
	ingress, service string
	client           *http.Client
	endpoint         *http.Server
	served           chan error
}

// serve registers a virtual object, and calls handler with the key of each call. senders bounds the calls
// that are sent at the same time.
func serve(ctx context.Context, ingress, admin string, senders int, handler func(ctx context.Context, key string) error) (*object, error) {
	service := ident.New("Bare")
	def := sdk.NewObject(service, sdk.WithJournalRetention(time.Second))
	def.Handler("Step", sdk.NewObjectHandler(func(ctx sdk.ObjectContext, _ sdk.Void) (sdk.Void, error) {
		return sdk.Void{}, handler(ctx, sdk.Key(ctx))
	}))
	calls, err := server.NewRestate().WithLogger(slog.DiscardHandler, false).Bind(def).Handler()
	if err != nil {
		return nil, fmt.Errorf("bare Restate: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("bare Restate: %w", err)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	protocols.SetHTTP1(true)
	o := &object{
		ingress: ingress, service: service,
		client:   &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: senders, MaxConnsPerHost: senders}},
		endpoint: &http.Server{Handler: calls, Protocols: &protocols, ReadHeaderTimeout: 10 * time.Second},
		served:   make(chan error, 1),
	}
	go func() { o.served <- o.endpoint.Serve(listener) }()
	if err := postBody(ctx, o.client, admin+"/deployments", fmt.Sprintf(`{"uri": "http://%s"}`, listener.Addr())); err != nil {
		return nil, errors.Join(fmt.Errorf("bare Restate: register: %w", err), o.close())
	}
	return o, nil
}

// send sends a call for a key, and does not wait until the handler has run.
func (o *object) send(ctx context.Context, key string) error {
	if err := postBody(ctx, o.client, fmt.Sprintf("%s/%s/%s/Step/send", o.ingress, o.service, key), ""); err != nil {
		return fmt.Errorf("bare Restate: send: %w", err)
	}
	return nil
}

func (o *object) close() error {
	o.client.CloseIdleConnections()
	if err := errors.Join(o.endpoint.Close(), <-o.served); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func postBody(ctx context.Context, client *http.Client, url, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	} else {
		req.Body = http.NoBody
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s", resp.Status, answer)
	}
	return err
}
