package models

import (
	"context"
	"strings"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/share"
)

const (
	// asksAtOnce is how many questions to servers run at the same time, because each answer takes
	// memory and time of the agent. One workspace may use at most half of them; see package share.
	asksAtOnce = 64
	// maxReason is the maximum length of a server's error text that is shown, in bytes.
	maxReason = 512
)

// guarded is a Loader for servers that are not trusted. Workspaces share the questions to servers.
// In errors of servers, the values of the server's secrets are blanked, because people who see an
// error may not be allowed to see the secrets.
type guarded struct {
	Loader

	// keeper is nil if instances have no secrets.
	keeper runtime.SecretKeeper
	asks   *share.Slots
}

// guardLoader returns a Loader for the servers that base runs.
func guardLoader(loader Loader, base runtime.Runtime) *guarded {
	keeper, _ := base.(runtime.SecretKeeper)
	return &guarded{Loader: loader, keeper: keeper, asks: share.NewSlots(asksAtOnce)}
}

// Held implements Loader.
func (g *guarded) Held(ctx context.Context, s Server, first []string) ([]Held, error) {
	if err := g.asks.Acquire(ctx, s.Workspace); err != nil {
		return nil, err
	}
	defer g.asks.Release(s.Workspace)
	held, err := g.Loader.Held(ctx, s, first)
	return held, g.withSafeText(s, err)
}

// Load implements Loader.
func (g *guarded) Load(ctx context.Context, s Server, m Model) error {
	return g.withSafeText(s, g.Loader.Load(ctx, s, m))
}

// Unload implements Loader.
func (g *guarded) Unload(ctx context.Context, s Server, m Model) error {
	return g.withSafeText(s, g.Loader.Unload(ctx, s, m))
}

// withSafeText returns the error with a text that may be shown to people.
func (g *guarded) withSafeText(s Server, err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if g.keeper != nil {
		secrets, unknown := g.keeper.Secrets(s.ID)
		if unknown != nil || !secrets.Known() {
			return &shownError{"it failed, and what the server says is not shown, because the values of its secrets are not known", err}
		}
		text = secrets.Blank(text)
	}
	return &shownError{clipReason(text), err}
}

// clipReason shortens a text to maxReason.
func clipReason(text string) string {
	if len(text) > maxReason {
		return strings.ToValidUTF8(text[:maxReason], "") + "..."
	}
	return text
}

// shownError is an error with another text, which may be shown.
type shownError struct {
	text string
	err  error
}

func (e *shownError) Error() string { return e.text }

func (e *shownError) Unwrap() error { return e.err }
