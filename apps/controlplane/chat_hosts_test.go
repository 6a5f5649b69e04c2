package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/memory"
)

// awayStore is a store that is out of reach while away is true.
type awayStore struct {
	store.Store
	away  bool
	reads int
}

func (s *awayStore) View(ctx context.Context, fn func(store.Tx) error) error {
	s.reads++
	if s.away {
		return errors.New("away")
	}
	return s.Store.View(ctx, fn)
}

func TestChatHosts_AreNamesBelowTheDomainByTheGatewaysOfRegions(t *testing.T) {
	db := &awayStore{Store: memory.New(func() int64 { return time.Now().UnixMilli() })}
	require.NoError(t, db.Update(t.Context(), func(tx store.Tx) error {
		for id, url := range map[string]string{
			"reg_1": "https://gateways.us.example:8443", "reg_2": "https://gateways.eu.example:8443", "reg_3": "http://10.0.0.7", "reg_4": "",
			"reg_5": "javascript:alert(1)", "reg_6": "https://'unsafe-inline'", "reg_7": "https:// *",
		} {
			if err := tx.InsertRegion(model.Region{ID: id, Name: id, GatewayURL: url}); err != nil {
				return err
			}
		}
		return nil
	}))
	hosts := &chatHosts{store: db, domain: "apps.example", log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	want := []string{"http://*.apps.example", "https://*.apps.example", "https://*.apps.example:8443"}
	require.Equal(t, want, hosts.currentSources(t.Context()))

	// They are kept for a while, and while the database is away.
	require.Equal(t, want, hosts.currentSources(t.Context()))
	require.Equal(t, 1, db.reads)
	hosts.readAt = hosts.readAt.Add(-2 * chatHostsFor)
	db.away = true
	require.Equal(t, want, hosts.currentSources(t.Context()))
	require.Equal(t, 2, db.reads)
}

func TestChatHosts_AreReadEvenIfTheClientGoesAway(t *testing.T) {
	db := memory.New(func() int64 { return time.Now().UnixMilli() })
	require.NoError(t, db.Update(t.Context(), func(tx store.Tx) error {
		return tx.InsertRegion(model.Region{ID: "reg_1", Name: "eu", GatewayURL: "https://gateways.eu.example"})
	}))
	hosts := &chatHosts{store: db, domain: "apps.example", log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	want := []string{"https://*.apps.example"}
	require.Equal(t, want, hosts.currentSources(gone))
	require.Equal(t, want, hosts.currentSources(t.Context()), "the next page gets them, too")
}

func TestChatHosts_OfTheTenantsLeaveThePlacesToThoseOfThePlatform(t *testing.T) {
	var others []string
	for port := range 3 * maxChatHosts {
		others = append(others, fmt.Sprintf("http://*.apps.example:%d", 1000+port))
	}
	got := limitChatSources([]string{"https://*.apps.example", "https://*.apps.example"}, others)
	require.Len(t, got, maxChatHosts)
	require.Equal(t, []string{"https://*.apps.example", "http://*.apps.example:1000"}, got[:2])
}
