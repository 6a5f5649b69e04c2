package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Keeper sets the label online on nodes without the annotation lost, and removes it from lost nodes.
type Keeper struct {
	client kubernetes.Interface
	log    *slog.Logger
}

// NewKeeper returns a keeper for the nodes that client reads.
func NewKeeper(client kubernetes.Interface, log *slog.Logger) *Keeper {
	return &Keeper{client: client, log: log}
}

// Run keeps the labels until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(k.client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = LabelGroup }))
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	add := func(obj any) {
		if n, ok := obj.(*corev1.Node); ok && wrong(n) {
			queue.Add(n.Name)
		}
	}
	informer := factory.Core().V1().Nodes()
	_, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) },
	})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	go func() {
		<-ctx.Done()
		queue.ShutDown()
	}()
	for {
		name, stop := queue.Get()
		if stop {
			return nil
		}
		if err := k.settle(ctx, informer.Lister(), name); err != nil && ctx.Err() == nil {
			k.log.WarnContext(ctx, "a node's heartbeats could not be switched; trying again", "node", name, "error", err)
			queue.AddRateLimited(name)
		} else {
			queue.Forget(name)
		}
		queue.Done(name)
	}
}

// wrong reports whether the node is lost and online, or neither.
func wrong(n *corev1.Node) bool { return IsLost(n) == (n.Labels[LabelOnline] == "true") }

func (k *Keeper) settle(ctx context.Context, lister corelisters.NodeLister, name string) error {
	n, err := lister.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !wrong(n) {
		return err
	}
	var online any = "true"
	if IsLost(n) {
		online = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{LabelOnline: online}}})
	if err != nil {
		return err
	}
	_, err = k.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		k.log.InfoContext(ctx, "switched a node's heartbeats", "node", name, "online", !IsLost(n))
	}
	return err
}
