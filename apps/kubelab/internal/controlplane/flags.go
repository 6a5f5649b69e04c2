package controlplane

import (
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/windlass-run/windlass/apps/kubelab/internal/component"
	"github.com/windlass-run/windlass/apps/kubelab/internal/nodes"
)

// serviceCIDR is the network of Services' addresses. They do not answer, because a kubelab has no kube-proxy.
const serviceCIDR = "10.96.0.0/16"

func url(scheme string, port int) string { return scheme + "://" + local(port) }

func local(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// etcdArgs returns etcd's flags. etcd does not wait for the disk, so its data survives a kill of processes
// but not a crash of the machine.
func (p *Plane) etcdArgs() []string {
	return []string{
		"--name=kubelab",
		"--data-dir=" + filepath.Join(p.cfg.DataDir, "etcd"),
		"--listen-client-urls=" + url("http", p.ports.etcd),
		"--advertise-client-urls=" + url("http", p.ports.etcd),
		// A cluster of one member has no peers, but it must listen for them.
		"--listen-peer-urls=http://127.0.0.1:0",
		"--initial-advertise-peer-urls=http://127.0.0.1:0",
		"--initial-cluster=kubelab=http://127.0.0.1:0",
		"--unsafe-no-fsync",
		"--quota-backend-bytes=" + strconv.Itoa(8<<30),
		"--log-level=warn",
	}
}

func (p *Plane) apiServerArgs() []string {
	c := p.creds
	tolerate := strconv.Itoa(int(p.cfg.EvictAfter.Seconds()))
	args := []string{
		"--etcd-servers=" + url("http", p.ports.etcd),
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(p.ports.api),
		"--tls-cert-file=" + c.CertFile(),
		"--tls-private-key-file=" + c.KeyFile(),
		"--token-auth-file=" + c.TokenFile(),
		"--authorization-mode=Node,RBAC",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-signing-key-file=" + c.ServiceAccountKeyFile(),
		"--service-account-key-file=" + c.ServiceAccountKeyFile(),
		"--service-cluster-ip-range=" + serviceCIDR,
		// The service "kubernetes" gets no endpoints, because no client would use them and the API server
		// refuses loopback addresses.
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none",
		"--kubelet-preferred-address-types=InternalIP",
		"--allow-privileged=true",
		"--default-not-ready-toleration-seconds=" + tolerate,
		"--default-unreachable-toleration-seconds=" + tolerate,
		"--profiling=false",
	}
	if p.foreign[component.APIServer] == "" {
		args = append(args, component.WithoutEndpointSlices)
	}
	if p.cfg.PodGroups {
		args = append(args, "--runtime-config=scheduling.k8s.io/v1alpha2=true")
	}
	return append(args, p.featureGates()...)
}

// featureGates returns the flags with the feature gates of all components.
func (p *Plane) featureGates() []string {
	if !p.cfg.PodGroups {
		return nil
	}
	return []string{"--feature-gates=GenericWorkload=true,GangScheduling=true"}
}

func (p *Plane) controllerManagerArgs() []string {
	c := p.creds
	args := append(p.servingArgs(p.ports.controllerManager, p.kubeconfig(component.ControllerManager)),
		"--kubeconfig="+p.kubeconfig(component.ControllerManager),
		"--leader-elect=false",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file="+c.ServiceAccountKeyFile(),
		"--root-ca-file="+c.CAFile(),
		"--controllers="+p.controllers(),
		"--node-monitor-period="+monitorPeriod(p.cfg.NodeGrace).String(),
		"--node-monitor-grace-period="+p.cfg.NodeGrace.String(),
		// Kubernetes slows evictions down in outages of data centres. Here tests lose nodes on purpose.
		"--node-eviction-rate=100",
		"--secondary-node-eviction-rate=100",
		"--large-cluster-size-threshold=0",
		// The default of 20 queries per second is too slow for a thousand deployments.
		"--kube-api-qps=1000", "--kube-api-burst=2000",
		"--profiling=false",
	)
	return append(args, p.featureGates()...)
}

// controllers returns the controllers that run: all except the writers of Endpoints. Kubernetes refuses
// Endpoints with loopback addresses, and EndpointSlices have replaced them. An API server from Config.Assets
// also refuses EndpointSlices with loopback addresses.
func (p *Plane) controllers() string {
	const most = "*,-endpoints-controller,-endpointslice-mirroring-controller"
	if p.foreign[component.APIServer] != "" {
		return most + ",-endpointslice-controller"
	}
	return most
}

// monitorPeriod returns the interval at which the node lifecycle controller checks nodes, a fraction of the
// grace period.
func monitorPeriod(grace time.Duration) time.Duration { return max(grace/4, 250*time.Millisecond) }

func (p *Plane) schedulerArgs() []string {
	args := append(p.servingArgs(p.ports.scheduler, p.kubeconfig(component.Scheduler)),
		"--config="+p.schedulerConfigFile())
	return append(args, p.featureGates()...)
}

// servingArgs returns the flags for a component's health and metrics. Health needs no credentials.
func (p *Plane) servingArgs(port int, kubeconfig string) []string {
	return []string{
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + p.creds.CertFile(),
		"--tls-private-key-file=" + p.creds.KeyFile(),
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--authorization-always-allow-paths=/healthz,/readyz,/livez",
		"--authentication-skip-lookup",
	}
}

func (p *Plane) schedulerConfig() []byte {
	return fmt.Appendf(nil, `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: %q
  qps: 1000
  burst: 2000
leaderElection:
  leaderElect: false
enableProfiling: false
`, p.kubeconfig(component.Scheduler))
}

func (p *Plane) kwokArgs() []string {
	return []string{
		"--kubeconfig=" + p.kubeconfig(component.KWOK),
		"--config=" + p.kwokConfigFile(),
		"--manage-nodes-with-label-selector=" + nodes.LabelOnline + "=true",
		"--node-lease-duration-seconds=" + strconv.Itoa(leaseSeconds(p.cfg.NodeGrace)),
		"-v=WARN",
	}
}

// leaseSeconds returns the duration of nodes' leases. KWOK renews a lease four times in that duration, so a
// node misses several renewals before the grace period ends.
func leaseSeconds(grace time.Duration) int { return max(1, int(grace.Seconds())) }
