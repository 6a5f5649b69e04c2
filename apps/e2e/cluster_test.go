package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/windlass-run/windlass/pkg/flock"
	"github.com/windlass-run/windlass/pkg/localstack/kubelab"
)

func partCluster(region string) string { return "kubelab-" + region }

func (s *stack) clusterDir(region string) string { return filepath.Join(s.dir, partCluster(region)) }

// buildPatience is long enough to build kubelab for the first time on a busy machine.
const buildPatience = 40 * time.Minute

// addClusters adds a Kubernetes cluster for every region.
func (s *stack) addClusters() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), buildPatience)
	defer cancel()
	_, err := kubelab.Ensure(ctx, func(line string) { s.t.Log(line) })
	require.NoError(s.t, err)
	for _, region := range s.cfg.regions {
		dir := s.clusterDir(region)
		cfg := kubelab.Config{
			DataDir: dir, CIDR: freeNetwork(s.t), Groups: s.cfg.groups, DieWithParent: true,
			NodeGrace: 40 * time.Second, EvictAfter: 4 * time.Second, CrashBackoff: 300 * time.Millisecond,
		}
		if s.cfg.losesNodes {
			cfg.NodeGrace = 6 * time.Second
		}
		s.add(partCluster(region), filepath.Join(dir, "kubelab.log"), func(ctx context.Context) (server, error) {
			cluster, err := kubelab.Start(ctx, cfg)
			if err != nil {
				return nil, err
			}
			return cluster, nil
		})
	}
}

// runtimeArgs returns the runtime flags of a region's agent.
func (s *stack) runtimeArgs(region string) []string {
	if s.cfg.runtime != "kubernetes" {
		return []string{"--gpus=none", "--trust-all-tenants", "--model-allow=127.0.0.0/8"}
	}
	var pools strings.Builder
	pools.WriteString("pools:\n")
	for _, g := range s.cfg.groups {
		name, _, _ := strings.Cut(strings.TrimPrefix(g, "name="), ",")
		if strings.Contains(g, ",gpu=") {
			fmt.Fprintf(&pools, "- {name: %s, nodeSelector: {kubelab.windlass.run/group: %s}}\n", name, name)
		}
	}
	path := filepath.Join(s.agentDir(region), "pools.yaml")
	require.NoError(s.t, os.WriteFile(path, []byte(pools.String()), 0o600))
	policy := filepath.Join(s.agentDir(region), "pod-policy.yaml")
	require.NoError(s.t, os.WriteFile(policy, []byte("annotations: [kubelab.windlass.run/]\ntolerations: [acme.example/frail]\n"), 0o600))
	return []string{"--kubeconfig=" + filepath.Join(s.clusterDir(region), "kubeconfig"), "--pools-file=" + path, "--pod-policy-file=" + policy}
}

// freeNetwork claims a part of 127.0.0.0/8 that no other stack of this user has, in the way of `windlass
// dev`. The claim lasts as long as this process.
func freeNetwork(t *testing.T) string {
	t.Helper()
	// The search begins at the end, so that a `windlass dev` that runs at the same time gets its first
	// choice.
	for n := 126; n >= 64; n-- {
		if _, err := flock.Try(filepath.Join(ports.Claims, "127."+strconv.Itoa(n))); err == nil {
			return fmt.Sprintf("127.%d.0.0/16", n)
		}
	}
	require.Fail(t, "no free network")
	return ""
}

// cluster is a region's Kubernetes cluster as its administrator sees it. It shows the objects that exist,
// independently of the product.
type cluster struct {
	server, token string
	// reads keep their connections, because a TLS handshake costs both sides more than a list of pods. A change has a
	// connection of its own, because it is not sent again if the server closes the connection meanwhile.
	reads, changes *http.Client
}

// clusters has the open clusters, by the text of their kubeconfig.
var clusters sync.Map

// openCluster returns the same cluster for each kubeconfig with the same text.
func openCluster(kubeconfig string) (*cluster, error) {
	data, err := os.ReadFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	if c, ok := clusters.Load(string(data)); ok {
		return c.(*cluster), nil
	}
	c, err := newCluster(kubeconfig, data)
	if err != nil {
		return nil, err
	}
	opened, _ := clusters.LoadOrStore(string(data), c)
	return opened.(*cluster), nil
}

func newCluster(kubeconfig string, data []byte) (*cluster, error) {
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
		return nil, err
	}
	if len(cfg.Clusters) == 0 || len(cfg.Users) == 0 {
		return nil, fmt.Errorf("%s names no cluster", kubeconfig)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cfg.Clusters[0].Cluster.CA)
	client := func(keepAlive bool) *http.Client {
		return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
			DisableKeepAlives: !keepAlive, IdleConnTimeout: 10 * time.Second,
			TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		}}
	}
	return &cluster{
		server: cfg.Clusters[0].Cluster.Server, token: cfg.Users[0].User.Token,
		reads: client(true), changes: client(false),
	}, nil
}

func (s *stack) cluster(t *testing.T, region string) *cluster {
	t.Helper()
	c, err := openCluster(filepath.Join(s.clusterDir(region), "kubeconfig"))
	require.NoError(t, err)
	return c
}

func (c *cluster) call(ctx context.Context, method, path string, body, into any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.server+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	if req.Header.Set("Content-Type", "application/json"); method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	client := c.changes
	if method == http.MethodGet {
		client = c.reads
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusCreated {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal(answer, into)
}

// object has the fields of Kubernetes objects that the tests read.
type object struct {
	Metadata struct {
		Name, Namespace, UID string
		Labels               map[string]string
		DeletionTimestamp    string
	}
	Type string
	Data map[string]string
	Spec struct {
		NodeName   string
		Containers []struct {
			Resources struct{ Limits map[string]string }
			Ports     []struct{ ContainerPort int }
		}
		ImagePullSecrets []struct{ Name string }
	}
	Status struct{ Phase, PodIP string }
}

func (o object) String() string {
	return fmt.Sprintf("%s/%s %s", o.Metadata.Namespace, o.Metadata.Name, o.Metadata.Labels["windlass.run/deployment"])
}

// list returns the objects of a kind ("api/v1/pods") with the labels, in all namespaces.
func (c *cluster) list(ctx context.Context, kind, selector string) ([]object, error) {
	var out struct{ Items []object }
	err := c.call(ctx, http.MethodGet, "/"+kind+"?labelSelector="+url.QueryEscape(selector), nil, &out)
	return out.Items, err
}

// kinds are the kinds of objects that Windlass creates for a deployment.
var kinds = []string{
	"apis/apps/v1/deployments", "apis/apps/v1/replicasets", "api/v1/pods", "api/v1/services", "api/v1/secrets", "api/v1/serviceaccounts",
	"api/v1/persistentvolumeclaims", "apis/policy/v1/poddisruptionbudgets", "apis/networking.k8s.io/v1/networkpolicies",
}

// leftIn lists the objects with the labels, of every kind.
func (c *cluster) leftIn(ctx context.Context, selector string) ([]string, error) {
	var left []string
	for _, kind := range kinds {
		items, err := c.list(ctx, kind, selector)
		if err != nil {
			return nil, err
		}
		for _, o := range items {
			left = append(left, kind+" "+o.String())
		}
	}
	return left, nil
}

// podsOf returns the pods of an app in all regions, by UID. It leaves out pods that have ended, such as
// evicted ones, and pods that are being deleted.
func (s *stack) podsOf(t *testing.T, app string) map[string]object {
	t.Helper()
	out := map[string]object{}
	for _, region := range s.cfg.regions {
		pods, err := s.cluster(t, region).list(t.Context(), "api/v1/pods", "app.kubernetes.io/name="+app)
		require.NoError(t, err)
		for _, p := range pods {
			if p.Metadata.DeletionTimestamp == "" && p.Status.Phase != "Failed" && p.Status.Phase != "Succeeded" {
				out[p.Metadata.UID] = p
			}
		}
	}
	return out
}

// drainNode drains a node of the region on which the app has a pod, as kubectl does. It cordons the node and
// evicts its pods as fast as disruption budgets allow. When the node is empty, drainNode uncordons it.
func (s *stack) drainNode(t *testing.T, region, app string) {
	t.Helper()
	c := s.cluster(t, region)
	on := func(ctx context.Context, node string) (left []object) {
		pods, err := c.list(ctx, "api/v1/pods", "app.kubernetes.io/name="+app)
		require.NoError(t, err)
		return slices.DeleteFunc(pods, func(p object) bool { return node != "" && p.Spec.NodeName != node })
	}
	all := on(t.Context(), "")
	require.NotEmpty(t, all)
	node := all[0].Spec.NodeName
	cordon := func(yes bool) {
		require.NoError(t, c.call(t.Context(), http.MethodPatch, "/api/v1/nodes/"+node, map[string]any{"spec": map[string]any{"unschedulable": yes}}, nil))
	}
	cordon(true)
	s.eventually(t, node+" is empty", func(ctx context.Context) error {
		left := on(ctx, node)
		if len(left) == 0 {
			return nil
		}
		refused := fmt.Errorf("there are %v", left)
		for _, p := range left {
			m := p.Metadata
			if m.DeletionTimestamp != "" {
				continue
			}
			refused = errors.Join(refused, c.call(ctx, http.MethodPost, "/api/v1/namespaces/"+m.Namespace+"/pods/"+m.Name+"/eviction", map[string]any{
				"apiVersion": "policy/v1", "kind": "Eviction", "metadata": map[string]any{"name": m.Name, "namespace": m.Namespace},
			}, nil))
		}
		return refused
	})
	cordon(false)
}

func uids(pods map[string]object) []string { return slices.Sorted(maps.Keys(pods)) }

// waitNothingInClusters waits until no cluster has an object with the labels.
func (s *stack) waitNothingInClusters(t *testing.T, selector string) {
	t.Helper()
	s.eventually(t, "nothing left with "+selector, func(ctx context.Context) error {
		var all []string
		for _, region := range s.cfg.regions {
			left, err := s.cluster(t, region).leftIn(ctx, selector)
			if err != nil {
				return err
			}
			all = append(all, left...)
		}
		if len(all) > 0 {
			return errors.New(strings.Join(all, "\n"))
		}
		return nil
	})
}
