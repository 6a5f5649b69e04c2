package nodeagent

import (
	"context"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/workload"
	"github.com/windlass-run/windlass/apps/kubelab/internal/nodes"
)

// stopPatience is the time for programs to end after SIGTERM when the agent ends.
const stopPatience = 2 * time.Second

// Agent runs the pods of every node. Create it with New, and call Run once.
type Agent struct {
	cfg      Config
	client   kubernetes.Interface
	endpoint *endpoint
	listener net.Listener
}

// New checks cfg and binds the port on which the API server reads logs and metrics. It starts nothing.
func New(cfg Config) (*Agent, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(clientConfig(cfg.Kubeconfig))
	if err != nil {
		return nil, fmt.Errorf("node agent: client: %w", err)
	}
	endpoint, err := newEndpoint(cfg.NodeAddress)
	if err != nil {
		return nil, fmt.Errorf("node agent: %w", err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(cfg.NodeAddress, "0"))
	if err != nil {
		return nil, fmt.Errorf("node agent: listen for the API server on %s: %w", cfg.NodeAddress, err)
	}
	return &Agent{cfg: cfg, client: client, endpoint: endpoint, listener: listener}, nil
}

// clientConfig returns a configuration without client-side limits, because the job queues limit concurrent calls
// and the API server has its own fairness.
func clientConfig(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.QPS = -1
	c.UserAgent = "kubelab-nodeagent"
	c.ContentType = "application/vnd.kubernetes.protobuf"
	c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return c
}

// KubeletPort returns the port that Node objects must name as their kubelet's port.
func (a *Agent) KubeletPort() int { return a.listener.Addr().(*net.TCPAddr).Port }

// Run runs pods until ctx ends. Then it ends every program and returns nil. The pods' status in the API is
// not changed at the end.
func (a *Agent) Run(ctx context.Context) error {
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	served := make(chan error, 1)

	// Processes may outlive the loop by their grace period, but never the spawner.
	spawning, stopSpawning := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSpawning()
	l := newLoop(a.cfg, a.client, workload.NewSpawner(spawning))
	go func() { served <- a.endpoint.serve(serving, a.listener, l, a.client) }()
	defer l.recorders.stopAll()

	pods := informers.NewSharedInformerFactoryWithOptions(a.client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
		}),
		informers.WithTransform(withoutManagedFields))
	nodeFactory := informers.NewSharedInformerFactoryWithOptions(a.client, 0, informers.WithTransform(onlyMetadata))
	defer pods.Shutdown()
	defer nodeFactory.Shutdown()
	looping, stopLoop := context.WithCancel(ctx)
	defer stopLoop()
	podInformer, nodeInformer := pods.Core().V1().Pods().Informer(), nodeFactory.Core().V1().Nodes().Informer()
	pods.Start(looping.Done())
	nodeFactory.Start(looping.Done())
	if !cache.WaitForCacheSync(looping.Done(), podInformer.HasSynced, nodeInformer.HasSynced) {
		return nil
	}
	// Used addresses and lost nodes must be known before the first pod is handled.
	for _, obj := range nodeInformer.GetStore().List() {
		l.nodeChanged(obj.(*corev1.Node))
	}
	for _, obj := range podInformer.GetStore().List() {
		l.reserveAddress(obj.(*corev1.Pod))
	}
	if err := l.followInformers(looping, podInformer, nodeInformer); err != nil {
		return fmt.Errorf("node agent: watch: %w", err)
	}
	a.cfg.Log.Info("node agent runs", "cidr", a.cfg.CIDR.String(), "kubelet_port", a.KubeletPort())

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.run(looping)
	}()
	var err error
	select {
	case <-ended:
	case err = <-served:
		err = fmt.Errorf("node agent: serve logs and metrics: %w", err)
	}
	stopLoop()
	<-ended
	l.endAll(stopPatience)
	return err
}

// withoutManagedFields drops a pod's managed fields, which are large and which the agent does not read.
func withoutManagedFields(obj any) (any, error) {
	if p, ok := obj.(*corev1.Pod); ok {
		p.ManagedFields = nil
	}
	return obj, nil
}

// onlyMetadata keeps only the fields of a node that the agent reads.
func onlyMetadata(obj any) (any, error) {
	if n, ok := obj.(*corev1.Node); ok {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion,
			Annotations: map[string]string{nodes.AnnotationLost: n.Annotations[nodes.AnnotationLost]},
		}}, nil
	}
	return obj, nil
}
