package api

import (
	"fmt"
	"net"
	"net/url"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// maxURLs is the maximum number of URLs of a deployment that are shown.
	maxURLs = 20
	// urlCandidates is the maximum number of instances that are read to find URLs.
	urlCandidates = 200
)

// urlsOf returns the URLs of a live app: first its host, then its domains, at the gateways of regions that have a share
// of its traffic. See reachedURLs.
func urlsOf(tx Tx, f facts, app model.App) ([]string, error) {
	if app.LiveDeploymentID == "" {
		return nil, nil
	}
	hosts := []string{model.Host(app, f.domain)}
	if app.Domains > 0 {
		domains, err := tx.DomainsOfApps([]string{app.ID})
		if err != nil {
			return nil, fmt.Errorf("list domains of app %s: %w", app.ID, err)
		}
		for _, d := range domains {
			if d.VerifiedAt != 0 {
				hosts = append(hosts, d.Name)
			}
		}
	}
	return f.reachedURLs(tx, app, app.LiveDeploymentID, hosts, func(t model.Topology) bool { return t.Weight > 0 })
}

// previewURLs returns URLs of the new version before it is live, in regions where it has ready instances. It returns
// none while the new version has taken-over instances of the earlier version, because gateways cannot distinguish
// them.
func previewURLs(tx Tx, f facts, app model.App, r model.Rollout) ([]string, error) {
	if app.RolloutID != r.ID || app.LiveDeploymentID == "" || app.LiveDeploymentID == r.DeploymentID {
		return nil, nil
	}
	if slices.ContainsFunc(f.rows[app.ID], func(t model.Topology) bool { return t.DeploymentID == r.DeploymentID && f.outdatedReplicas(t) > 0 }) {
		return nil, nil
	}
	hosts := []string{model.PreviewHost(app.ID, app.Name, f.deployments[r.DeploymentID].Version, f.domain)}
	return f.reachedURLs(tx, app, r.DeploymentID, hosts, func(t model.Topology) bool {
		return t.DeploymentID == r.DeploymentID && topology.Active(t) && f.placeOf(t).Observed.Ready > 0
	})
}

// reachedURLs returns the URLs of the hosts, without duplicates. It uses the gateways of regions that have a row for which
// the function serves returns true. Then it adds ready instances of the deployment in regions without gateways.
func (f facts) reachedURLs(tx Tx, app model.App, deploymentID string, hosts []string, serves func(model.Topology) bool) ([]string, error) {
	var gateways []*url.URL
	bare := false
	rows := slices.Clone(f.rows[app.ID])
	slices.SortStableFunc(rows, func(x, y model.Topology) int { return byName(f.placeOf(x), f.placeOf(y)) })
	for _, t := range rows {
		at := gatewayOf(f.regions[t.RegionID])
		switch {
		case at == nil:
			bare = bare || t.DeploymentID == deploymentID && t.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED
		case serves(t):
			gateways = append(gateways, at)
		}
	}
	var out []string
	for _, host := range hosts {
		for _, at := range gateways {
			if u := urlThrough(at, host); !slices.Contains(out, u) {
				out = append(out, u)
			}
		}
	}
	if bare {
		instances, err := tx.ListInstances(
			model.InstanceFilter{WorkspaceID: app.WorkspaceID, DeploymentID: deploymentID}, model.Page{Limit: urlCandidates})
		if err != nil {
			return nil, fmt.Errorf("list instances of %s: %w", deploymentID, err)
		}
		for _, i := range instances {
			if i.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY && i.Address != "" && gatewayOf(f.regions[i.RegionID]) == nil {
				out = append(out, "http://"+i.Address)
			}
		}
	}
	return out[:min(len(out), maxURLs)], nil
}

// gatewayOf returns the URL of the region's gateways, nil if it is unknown.
func gatewayOf(r model.Region) *url.URL {
	u, err := url.Parse(r.GatewayURL)
	if err != nil || u.Hostname() == "" {
		return nil
	}
	return u
}

// urlThrough returns the host's URL with the scheme and port of the gateways.
func urlThrough(gateways *url.URL, host string) string {
	if port := gateways.Port(); port != "" {
		host = net.JoinHostPort(host, port)
	}
	return gateways.Scheme + "://" + host
}
