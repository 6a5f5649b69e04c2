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

// Invocations is how many invocations of a virtual object a second Restate makes
// alone, over so many keys: each is sent, waits for its key, and runs a handler that
// does nothing, which is what a step of a workflow costs before it does anything.
func Invocations(ctx context.Context, ingress, admin string, window time.Duration, senders, keys int) (perSecond float64, err error) {
	service := ident.New("Bare")
	var done atomic.Int64
	object := sdk.NewObject(service, sdk.WithJournalRetention(time.Second))
	object.Handler("Step", sdk.NewObjectHandler(func(sdk.ObjectContext, sdk.Void) (sdk.Void, error) {
		done.Add(1)
		return sdk.Void{}, nil
	}))
	calls, err := server.NewRestate().WithLogger(slog.DiscardHandler, false).Bind(object).Handler()
	if err != nil {
		return 0, fmt.Errorf("bare Restate: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("bare Restate: %w", err)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	protocols.SetHTTP1(true)
	endpoint := &http.Server{Handler: calls, Protocols: &protocols, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- endpoint.Serve(listener) }()
	defer func() {
		if ended := errors.Join(endpoint.Close(), <-served); !errors.Is(ended, http.ErrServerClosed) {
			err = errors.Join(err, ended)
		}
	}()

	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: senders, MaxConnsPerHost: senders}}
	defer client.CloseIdleConnections()
	if err := post(ctx, client, admin+"/deployments", fmt.Sprintf(`{"uri": "http://%s"}`, listener.Addr())); err != nil {
		return 0, fmt.Errorf("bare Restate: register: %w", err)
	}
	send := func(ctx context.Context, i int64) error {
		if err := post(ctx, client, fmt.Sprintf("%s/%s/key-%d/Step/send", ingress, service, i%int64(keys)), ""); err != nil {
			return fmt.Errorf("bare Restate: send: %w", err)
		}
		// What is sent and not yet done is bounded, so that the rate is that of
		// invocations and not of sends.
		for i-done.Load() > int64(8*senders) && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		return nil
	}
	begin := time.Now()
	if _, err := rate(ctx, window, senders, send); err != nil {
		return 0, err
	}
	return float64(done.Load()) / time.Since(begin).Seconds(), nil
}

func post(ctx context.Context, client *http.Client, url, body string) error {
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
