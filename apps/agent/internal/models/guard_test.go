package models

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
)

// secretBase is a runtime whose instances have secrets.
type secretBase struct {
	runtime.Runtime
	secrets *redact.Values
	err     error
}

func (b *secretBase) Secrets(string) (*redact.Values, error) { return b.secrets, b.err }

// stubLoader answers each call with the functions.
type stubLoader struct {
	held func(ctx context.Context) error
	err  error
}

func (l *stubLoader) Held(ctx context.Context, _ Server, _ []string) ([]Held, error) {
	return nil, l.held(ctx)
}
func (l *stubLoader) Load(context.Context, Server, Model) error   { return l.err }
func (l *stubLoader) Unload(context.Context, Server, Model) error { return l.err }

func TestGuard_BlanksSecretsInErrors(t *testing.T) {
	const secret = "hf_0123456789abcdef"
	refused := fmt.Errorf("%w: 400: cannot fetch with token %s", ErrRefused, secret)
	base, stub := &secretBase{secrets: redact.New(secret)}, &stubLoader{err: refused}
	l := guardLoader(stub, base)
	for _, call := range []func(context.Context, Server, Model) error{l.Load, l.Unload} {
		err := call(t.Context(), Server{ID: "ins_1"}, Model{})
		require.EqualError(t, err, "the server refused: 400: cannot fetch with token ***")
		require.ErrorIs(t, err, ErrRefused)
	}
	// The text is cut inside a secret. The secret must be blanked before the cut.
	stub.err = errors.New(strings.Repeat("x", maxReason-10) + secret)
	require.NotContains(t, l.Load(t.Context(), Server{}, Model{}).Error(), "hf_")
	require.Len(t, l.Load(t.Context(), Server{}, Model{}).Error(), maxReason-10+len("***"))
	stub.err = errors.New(strings.Repeat("x", 60_000))
	require.Len(t, l.Load(t.Context(), Server{}, Model{}).Error(), maxReason+len("..."))

	stub.err = refused
	for _, base := range []*secretBase{{}, {err: runtime.ErrSecretsUnknown}, {err: runtime.ErrUnknownInstance}} {
		err := guardLoader(stub, base).Load(t.Context(), Server{}, Model{})
		require.ErrorContains(t, err, "is not shown")
		require.NotContains(t, err.Error(), secret)
		require.ErrorIs(t, err, ErrRefused)
	}
	stub.err = nil
	require.NoError(t, l.Load(t.Context(), Server{}, Model{}))
}

func TestGuard_LeavesQuestionsToOtherWorkspaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		l := guardLoader(&stubLoader{held: func(ctx context.Context) error {
			asked.Add(1)
			<-ctx.Done() // a server that does not answer
			return ctx.Err()
		}}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for range 10 * asksAtOnce {
			go func() { _, _ = l.Held(ctx, Server{Workspace: "hostile"}, nil) }()
		}
		synctest.Wait()
		require.EqualValues(t, asksAtOnce/2, asked.Load())
		go func() { _, _ = l.Held(ctx, Server{Workspace: "other"}, nil) }()
		synctest.Wait()
		require.EqualValues(t, asksAtOnce/2+1, asked.Load())
		cancel()
		synctest.Wait()
	})
}
