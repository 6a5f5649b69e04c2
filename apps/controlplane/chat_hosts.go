package controlplane

import (
	"context"
	"log/slog"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

const (
	// chatHostsFor is how long the addresses of gateways are kept, because each load of the dashboard needs them.
	chatHostsFor = time.Minute
	// chatHostsTimeout bounds the wait of a page for the addresses.
	chatHostsTimeout = 2 * time.Second
	// maxChatHosts bounds the length of a page's Content-Security-Policy. Gateways of one platform usually have one
	// scheme and port.
	maxChatHosts = 20
	// chatHostsPage is the number of regions that a query reads.
	chatHostsPage = 1000
)

// chatHosts has the addresses at which the dashboard's page Chat may call apps: all hosts below the domain, by the
// schemes and ports of the regions' gateways. Only names below the domain count, so that no region's owner can add
// another site.
type chatHosts struct {
	store  store.Store
	domain string
	log    *slog.Logger

	mu      sync.Mutex
	readAt  time.Time
	sources []string
}

// currentSources returns the addresses as sources of a Content-Security-Policy, such as "https://*.apps.example.com:8443".
// If the database is away, it returns the last ones.
func (c *chatHosts) currentSources(ctx context.Context) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.readAt.IsZero() && time.Since(c.readAt) < chatHostsFor {
		return c.sources
	}
	// The addresses are for later pages, too, so the read goes on if this page's client goes away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), chatHostsTimeout)
	defer cancel()
	var found []string
	err := c.store.View(ctx, func(tx store.Tx) error {
		found = nil
		for after := ""; ; {
			regions, err := tx.AllRegions(store.Page{After: after, Limit: chatHostsPage})
			if err != nil {
				return err
			}
			found = append(found, chatSources(regions, c.domain)...)
			if len(regions) < chatHostsPage {
				return nil
			}
			after = regions[len(regions)-1].ID
		}
	})
	// After a failure, too, the database is not asked again for a while.
	c.readAt = time.Now()
	if err != nil {
		c.log.WarnContext(ctx, "cannot read the addresses of gateways for the dashboard's page Chat", "error", err)
		return c.sources
	}
	slices.Sort(found)
	found = slices.Compact(found)
	c.sources = found[:min(len(found), maxChatHosts)]
	return c.sources
}

// chatSources returns the sources for the gateways of the regions, with duplicates.
func chatSources(regions []model.Region, domain string) (out []string) {
	for _, r := range regions {
		u, err := url.Parse(r.GatewayURL)
		if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
			continue
		}
		source := u.Scheme + "://*." + domain
		if port := u.Port(); port != "" {
			source += ":" + port
		}
		out = append(out, source)
	}
	return out
}
