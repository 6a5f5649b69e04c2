// Package volumes is the storage of a cluster: a default StorageClass, and a provisioner that gives every
// claim a folder on this host.
//
// The class binds a claim when a pod needs it, as the classes of cloud providers do. By then the scheduler
// has named a node on the claim, and Kubernetes' volume controller has set this provisioner's annotation. A
// volume is named after the claim's uid, so that a claim never gets two. Its folder is removed with it.
package volumes

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

const (
	// Class is the name of the default StorageClass.
	Class = "standard"

	provisioner     = "kubelab.windlass.run/host-folder"
	annDefault      = "storageclass.kubernetes.io/is-default-class"
	annProvisioner  = "volume.kubernetes.io/storage-provisioner"
	annProvisioned  = "pv.kubernetes.io/provisioned-by"
	prefix          = "pvc-"
	claimKey        = "claim"
	volumeKey       = "volume"
	folderMode      = 0o700
	defaultClassYes = "true"
)

// key is a key of the queue: a changed object, by kind and cache key.
type key struct{ kind, name string }

// Provisioner serves the claims of one cluster.
type Provisioner struct {
	client kubernetes.Interface
	dir    string
	log    *slog.Logger

	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
}

// New returns a provisioner whose volumes are folders in dir.
func New(client kubernetes.Interface, dir string, log *slog.Logger) *Provisioner {
	return &Provisioner{client: client, dir: dir, log: log}
}

// EnsureClass creates the default StorageClass, unless a class of that name exists.
func (p *Provisioner) EnsureClass(ctx context.Context) error {
	mode, policy := storagev1.VolumeBindingWaitForFirstConsumer, corev1.PersistentVolumeReclaimDelete
	_, err := p.client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: Class, Annotations: map[string]string{annDefault: defaultClassYes}},
		Provisioner: provisioner, VolumeBindingMode: &mode, ReclaimPolicy: &policy,
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create storage class %s: %w", Class, err)
	}
	return nil
}

// Run provisions and reclaims volumes until ctx ends.
func (p *Provisioner) Run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactory(p.client, 0)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[key]())
	claims, volumes := factory.Core().V1().PersistentVolumeClaims(), factory.Core().V1().PersistentVolumes()
	p.claims, p.volumes = claims.Lister(), volumes.Lister()
	for kind, informer := range map[string]cache.SharedIndexInformer{claimKey: claims.Informer(), volumeKey: volumes.Informer()} {
		add := func(obj any) {
			if name, err := cache.MetaNamespaceKeyFunc(obj); err == nil {
				queue.Add(key{kind, name})
			}
		}
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) },
		})
		if err != nil {
			return fmt.Errorf("watch volumes: %w", err)
		}
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	go func() {
		<-ctx.Done()
		queue.ShutDown()
	}()
	for {
		k, stop := queue.Get()
		if stop {
			return nil
		}
		if err := p.settle(ctx, k); err != nil && ctx.Err() == nil {
			p.log.WarnContext(ctx, "a volume could not be settled; trying again", k.kind, k.name, "error", err)
			queue.AddRateLimited(k)
		} else {
			queue.Forget(k)
		}
		queue.Done(k)
	}
}

func (p *Provisioner) settle(ctx context.Context, k key) error {
	if k.kind == claimKey {
		return p.provision(ctx, k.name)
	}
	return p.reclaim(ctx, k.name)
}

func (p *Provisioner) provision(ctx context.Context, name string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(name)
	if err != nil {
		return err
	}
	claim, err := p.claims.PersistentVolumeClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if claim.DeletionTimestamp != nil || claim.Spec.VolumeName != "" || claim.Annotations[annProvisioner] != provisioner {
		return nil
	}
	volume := p.volumeOf(claim)
	if err := os.MkdirAll(volume.Spec.HostPath.Path, folderMode); err != nil {
		return err
	}
	_, err = p.client.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (p *Provisioner) volumeOf(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	name := prefix + string(claim.UID)
	class := ""
	if claim.Spec.StorageClassName != nil {
		class = *claim.Spec.StorageClassName
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{annProvisioned: provisioner}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   claim.Spec.AccessModes,
			VolumeMode:                    claim.Spec.VolumeMode,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              class,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(p.dir, name)},
			},
		},
	}
}

// reclaim removes a volume whose claim is gone. It removes the folder first. If the process ends before the
// object is removed, the next run tries again.
func (p *Provisioner) reclaim(ctx context.Context, name string) error {
	volume, err := p.volumes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	ours := volume.Annotations[annProvisioned] == provisioner && strings.HasPrefix(name, prefix)
	if !ours || volume.Status.Phase != corev1.VolumeReleased ||
		volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(p.dir, name)); err != nil {
		return err
	}
	err = p.client.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
