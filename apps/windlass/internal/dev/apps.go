package dev

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

const (
	// appsDeadline bounds the call that lists apps. A start should not wait longer for a list that is only a hint.
	appsDeadline = 5 * time.Second
	// namedApps is how many apps of earlier runs the message of a start names. listedApps is how many it counts.
	namedApps  = 3
	listedApps = 100
)

// earlierApps returns the names of at most listedApps apps of earlier runs. Without an earlier run, or if they cannot
// be read, it returns none.
func (r *run) earlierApps(ctx context.Context) []string {
	if !r.hasEarlier {
		return nil
	}
	kept, err := loadCredentials(r.layout.credentialsPath())
	if err != nil {
		return nil
	}
	config, err := clientTLS(r.caFile())
	if err != nil {
		return nil
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}}
	names, err := listApps(ctx, client, r.urlOfPort(r.ports[portAPI]), kept.APIKey)
	if err != nil {
		return nil
	}
	return names
}

func listApps(ctx context.Context, client *http.Client, server, key string) ([]string, error) {
	options := rpc.ClientOptions(rpc.ClientConfig{Token: func() string { return key }, UserAgent: "windlass-dev", Timeout: appsDeadline})
	r, err := windlassv1connect.NewAppServiceClient(client, server, options...).ListApps(ctx, &windlassv1.ListAppsRequest{Page: &windlassv1.PageRequest{Size: listedApps}})
	if err != nil {
		return nil, fmt.Errorf("list apps: %w", err)
	}
	var names []string
	for _, app := range r.GetApps() {
		names = append(names, app.GetName())
	}
	return names, nil
}

// appsText names a few apps, and counts the others.
func appsText(names []string) string {
	if len(names) <= namedApps {
		return strings.Join(names, ", ")
	}
	more := fmt.Sprint(len(names) - namedApps)
	if len(names) >= listedApps {
		more = "at least " + more
	}
	return strings.Join(names[:namedApps], ", ") + " and " + more + " more"
}
