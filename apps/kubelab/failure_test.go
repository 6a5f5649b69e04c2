package kubelab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/kubelab/internal/component"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

func (l *cluster) command(t *testing.T, args ...string) {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), append(args, "--kubeconfig", l.kubeconfig), &out, &out), out.String())
}

func TestLostNode_PodsAreReplacedElsewhere(t *testing.T) {
	l := sharedCluster(t)
	ns := l.namespace(t, nil)
	l.create(t, ns, serve("model", 1, func(spec *corev1.PodSpec) {
		spec.NodeSelector = map[string]string{"kubelab.windlass.run/group": "lossy"}
		spec.Tolerations = []corev1.Toleration{{Key: "test/lossy", Operator: corev1.TolerationOpExists}}
	}))
	l.ready(t, ns, "model", 1)
	first := l.pods(t, ns)[0]

	l.command(t, "node", "lose", first.Spec.NodeName)
	eventually(t, func(ctx context.Context) error {
		pods := l.pods(t, ns)
		hangs := slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.UID == first.UID && p.DeletionTimestamp != nil })
		other := slices.ContainsFunc(pods, func(p corev1.Pod) bool {
			return p.Spec.NodeName != "" && p.Spec.NodeName != first.Spec.NodeName && p.Status.Phase == corev1.PodRunning
		})
		if !hangs || !other {
			return fmt.Errorf("terminating on the lost node: %t; running elsewhere: %t", hangs, other)
		}
		return nil
	})
	node, err := l.client.CoreV1().Nodes().Get(t.Context(), first.Spec.NodeName, metav1.GetOptions{})
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == corev1.TaintNodeUnreachable && taint.Effect == corev1.TaintEffectNoExecute
	}), "%v", node.Spec.Taints)

	l.command(t, "node", "restore", first.Spec.NodeName)
	eventually(t, func(ctx context.Context) error {
		_, err := l.client.CoreV1().Pods(ns).Get(ctx, first.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the pod is still there: %w", err)
	})
	var out bytes.Buffer
	eventually(t, func(ctx context.Context) error {
		out.Reset()
		if err := run(ctx, []string{"node", "list", "--kubeconfig", l.kubeconfig}, &out, &out); err != nil {
			return err
		}
		if bytes.Contains(out.Bytes(), []byte("lost")) || bytes.Contains(out.Bytes(), []byte("NotReady")) {
			return fmt.Errorf("not all nodes are ready:\n%s", out.String())
		}
		return nil
	})
}

func TestComponent_KilledIsStartedAgain(t *testing.T) {
	l := sharedCluster(t)
	ns := l.namespace(t, nil)
	for _, name := range []string{component.Scheduler, component.ControllerManager, component.KWOK, component.APIServer, component.Etcd} {
		pid := l.component(t, name)
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		eventually(t, func(ctx context.Context) error {
			if rec, ok, err := proc.Find(filepath.Join(l.dir, "run", name+".json")); err != nil || !ok || rec.PID == pid {
				return errors.Join(fmt.Errorf("%s runs: %t, with pid %d", name, ok, rec.PID), err)
			}
			_, err := l.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
			return err
		})
	}
	l.create(t, ns, serve("model", 1, nil))
	l.ready(t, ns, "model", 1)
}

func TestKubelab_KilledLeavesNoProcessAndKeepsItsState(t *testing.T) {
	dir := t.TempDir()
	flags := []string{"--cidr=127.92.0.0/16", "--nodes=1"}
	first, err := launch(t.Context(), dir, flags...)
	require.NoError(t, err)
	ns := first.namespace(t, nil)
	first.create(t, ns, serve("model", 1, nil))
	first.ready(t, ns, "model", 1)
	before := first.pods(t, ns)[0]
	var pids []int
	for _, name := range []string{component.Etcd, component.APIServer, component.ControllerManager, component.Scheduler, component.KWOK} {
		pids = append(pids, first.component(t, name))
	}

	require.NoError(t, first.cmd.Process.Kill())
	require.ErrorContains(t, <-first.ended, "killed")
	for _, pid := range pids {
		eventually(t, func(context.Context) error {
			if _, err := proc.Birth(pid); err == nil {
				return fmt.Errorf("process %d outlives its kubelab", pid)
			}
			return nil
		})
	}

	second, err := launch(t.Context(), dir, flags...)
	require.NoError(t, err)
	require.Equal(t, first.rest.Host, second.rest.Host, "kubeconfigs from before the kill still work")
	require.Equal(t, first.rest.BearerToken, second.rest.BearerToken)
	second.ready(t, ns, "model", 1)
	eventually(t, func(ctx context.Context) error {
		status, err := httpGet(ctx, "http://"+before.Status.PodIP+":8000/health")
		if err == nil && status != 200 {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})
	after := second.pods(t, ns)
	require.Len(t, after, 1)
	require.Equal(t, before.UID, after[0].UID)
	require.NoError(t, second.stop())
	require.NoFileExists(t, filepath.Join(dir, "run", component.Etcd+".json"))
}

func TestKubelab_SecondOnADirectoryIsRefused(t *testing.T) {
	l := sharedCluster(t)
	_, err := launch(t.Context(), l.dir)
	require.ErrorContains(t, err, "another kubelab runs on "+l.dir)
	_, err = os.Stat(l.kubeconfig)
	require.NoError(t, err, "the refused kubelab must not remove the kubeconfig")
}
