package dev

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/localstack"
	"github.com/windlass-run/windlass/pkg/localstack/atomicfile"
	"github.com/windlass-run/windlass/pkg/localstack/kubelab"
)

// These are the runtimes of instances in the regions.
const (
	runtimeProcess    = "process"
	runtimeKubernetes = "kubernetes"
)

// defaultGroups are the nodes of a region's cluster: two kinds of GPU, so that users can choose one, spread
// over zones, and a node without GPUs.
var defaultGroups = []string{
	"name=h100,nodes=2,gpu=nvidia.com/gpu=8,gpu-product=NVIDIA-H100-80GB-HBM3,zones=a|b",
	"name=l4,nodes=2,gpu=nvidia.com/gpu=4,gpu-product=NVIDIA-L4,zones=a|b,spot=true",
	"name=cpu,nodes=1",
}

const (
	defaultNodes   = 2
	defaultPerNode = "8"
	defaultProduct = "NVIDIA-H100-80GB-HBM3"
	// groupLabel is the label by which kubelab's nodes name their group.
	groupLabel = "kubelab.windlass.run/group"
)

var errNotClusters = errors.New("--nodes and --group describe nodes of clusters: add --runtime kubernetes")

// completeKubernetes checks the options about clusters.
func (o *options) completeKubernetes() error {
	switch o.runtime {
	case "", runtimeProcess, runtimeKubernetes:
	default:
		return fmt.Errorf("--runtime: %q is neither %s nor %s", o.runtime, runtimeProcess, runtimeKubernetes)
	}
	if o.runtime == runtimeProcess && (o.nodes != 0 || len(o.groups) > 0) {
		return errNotClusters
	}
	if o.nodes < 0 || o.nodes > 1000 {
		return fmt.Errorf("--nodes: %d is not a number from 1 to 1000", o.nodes)
	}
	if len(o.groups) > 0 && o.simpleNodes() {
		return errors.New("--group cannot be combined with --nodes and --gpus: leave out --nodes and --gpus, or --group")
	}
	seen := map[string]bool{}
	for _, g := range o.groups {
		name, _ := groupName(g)
		if !ident.ValidName(name) {
			return fmt.Errorf("--group: %q has no name: begin with name=NAME, in lower-case letters, digits and dashes", g)
		}
		if seen[name] {
			return fmt.Errorf("--group: there are two groups of name %s", name)
		}
		seen[name] = true
	}
	return nil
}

// simpleNodes reports whether --nodes or --gpus describe the nodes.
func (o *options) simpleNodes() bool { return o.nodes != 0 || o.gpus != "auto" }

// simpleGroup returns the group of nodes that --nodes and --gpus describe.
func simpleGroup(nodes int, gpus string) string {
	if nodes == 0 {
		nodes = defaultNodes
	}
	count, product, _ := strings.Cut(gpus, ":")
	name := "gpu"
	switch count {
	case "none", "0":
		return fmt.Sprintf("name=cpu,nodes=%d", nodes)
	case "auto":
		count = defaultPerNode
	}
	if product == "" || product == defaultProduct {
		name, product = "h100", defaultProduct
	}
	return fmt.Sprintf("name=%s,nodes=%d,gpu=nvidia.com/gpu=%s,gpu-product=%s", name, nodes, count, product)
}

// groupName returns the name in a group's description, and whether the group has GPUs. kubelab checks the
// rest of the description.
func groupName(group string) (name string, gpus bool) {
	for field := range strings.SplitSeq(group, ",") {
		switch key, value, _ := strings.Cut(strings.TrimSpace(field), "="); key {
		case "name":
			name = value
		case "gpu":
			gpus = true
		}
	}
	return name, gpus
}

// settleKubernetes takes values that the flags leave out from the last run, so that a plain `windlass dev` brings back
// the same clusters.
func (r *run) settleKubernetes(last State) (err error) {
	r.runtime, r.groups = r.opts.runtime, r.opts.groups
	if r.runtime == "" {
		r.runtime = last.Runtime
	}
	switch r.runtime {
	case "":
		r.runtime = runtimeProcess
	case runtimeProcess, runtimeKubernetes:
	default:
		return fmt.Errorf("the last run in %s had the runtime %q, which this windlass does not know: set --runtime to %s or %s",
			r.layout.root, r.runtime, runtimeProcess, runtimeKubernetes)
	}
	r.networks = last.Networks
	if r.runtime != runtimeKubernetes {
		if r.opts.nodes != 0 || r.groups != nil {
			return errNotClusters
		}
		// The groups are kept for the next run with clusters.
		r.groups = last.Groups
		return nil
	}
	switch {
	case r.groups != nil:
	case r.opts.simpleNodes():
		r.groups = []string{simpleGroup(r.opts.nodes, r.opts.gpus)}
	case last.Groups != nil:
		r.groups = last.Groups
	default:
		r.groups = defaultGroups
	}
	r.networks, err = assignNetworks(localstack.ClaimsFolder(), last.Networks, r.regions, r.reportNote)
	return err
}

// ensureKubelab builds the program of the clusters before anything else starts, because that takes minutes
// the first time.
func (r *run) ensureKubelab(ctx context.Context) error {
	begin := time.Now()
	const step = "kubelab's program"
	r.report(event{Kind: eventBegin, Name: step})
	if _, err := kubelab.Ensure(ctx, r.reportNote); err != nil {
		return err
	}
	r.report(event{Kind: eventDone, Name: step, Elapsed: time.Since(begin)})
	return nil
}

// clusterChild returns the child that runs a region's Kubernetes.
func (r *run) clusterChild(region string) child {
	dir := r.layout.kubelabDir(region)
	return child{
		name: "kubelab/" + region, title: "Kubernetes " + region, detail: shortPath(kubeconfigFile(dir)),
		log: filepath.Join(dir, "kubelab.log"), kubeconfig: kubeconfigFile(dir),
		start: func(ctx context.Context) (server, error) {
			cluster, err := kubelab.Start(ctx, kubelab.Config{
				DataDir: dir, CIDR: networkCIDR(r.networks[region]), Groups: r.groups, Progress: r.reportNote,
			})
			if err != nil {
				// A nil *Cluster must not become a non-nil server.
				return nil, err
			}
			return cluster, nil
		},
	}
}

// kubeconfigFile returns the kubeconfig of the cluster's administrator: see kubelab.Cluster.
func kubeconfigFile(dir string) string { return filepath.Join(dir, "kubeconfig") }

// writePools writes the file of the region's pools: one for each group of nodes with GPUs.
func (r *run) writePools(path string) error {
	type pool struct {
		Name         string            `json:"name"`
		NodeSelector map[string]string `json:"nodeSelector"`
	}
	var file struct {
		Pools []pool `json:"pools"`
	}
	for _, g := range r.groups {
		if name, gpus := groupName(g); gpus {
			file.Pools = append(file.Pools, pool{Name: name, NodeSelector: map[string]string{groupLabel: name}})
		}
	}
	data, err := yaml.Marshal(file)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o600)
}

// clusterHints returns shell commands that list the pods of each cluster.
func clusterHints(processes []ProcessState) []string {
	var out []string
	for _, p := range processes {
		if region, ok := strings.CutPrefix(p.Name, "kubelab/"); ok && p.Kubeconfig != "" {
			out = append(out, fmt.Sprintf("KUBECONFIG=%s kubectl get pods -A    # %s", shellWord(p.Kubeconfig), region))
		}
	}
	return out
}

// clusterReady asks the API server that the kubeconfig names whether it is ready.
func clusterReady(ctx context.Context, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotReady, err)
	}
	var cfg struct {
		Clusters []struct {
			Cluster struct {
				Server string `json:"server"`
				CA     []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Token string `json:"token"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(data, &cfg); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if len(cfg.Clusters) == 0 || len(cfg.Users) == 0 {
		return fmt.Errorf("read %s: it names no cluster", path)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cfg.Clusters[0].Cluster.CA)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.Clusters[0].Cluster.Server+"/readyz", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+cfg.Users[0].User.Token)
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotReady, errors.Unwrap(err))
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("%w: %s: %s", errNotReady, resp.Status, strings.TrimSpace(string(body)))
	}
	return nil
}
