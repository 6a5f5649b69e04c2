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
	var platform, others []string
	err := c.store.View(ctx, func(tx store.Tx) error {
		platform, others = nil, nil
		for after := ""; ; {
			regions, err := tx.AllRegions(store.Page{After: after, Limit: chatHostsPage})
			if err != nil {
				return err
			}
			for _, r := range regions {
				switch source := chatSource(r, c.domain); {
				case source == "":
				case r.WorkspaceID == "":
					platform = append(platform, source)
				default:
					others = append(others, source)
				}
			}
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
	c.sources = limitChatSources(platform, others)
	return c.sources
}

// limitChatSources returns at most maxChatHosts sources, without duplicates. Those of the platform's regions come first,
// because tenants choose the URLs of their own regions, and could use up the places with ports that they make up.
func limitChatSources(platform, others []string) []string {
	var out []string
	for _, list := range [][]string{platform, others} {
		slices.Sort(list)
		for _, source := range slices.Compact(list) {
			if !slices.Contains(out, source) && len(out) < maxChatHosts {
				out = append(out, source)
			}
		}
	}
	return out
}

// chatSource returns the source for the gateways of the region. Empty: their address is not known.
func chatSource(r model.Region, domain string) string {
	u, err := url.Parse(r.GatewayURL)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return ""
	}
	source := u.Scheme + "://*." + domain
	if port := u.Port(); port != "" {
		source += ":" + port
	}
	return source
}
