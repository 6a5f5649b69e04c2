package kubelab

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// asKubelab is the environment variable that makes this test binary run as kubelab or one of its components,
// because a kubelab executes itself.
const asKubelab = "KUBELAB_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if name := os.Getenv(asAsset); name != "" {
		os.Exit(asset(name))
	}
	if os.Getenv(asKubelab) != "" {
		os.Exit(Main(os.Args))
	}
	code := m.Run()
	if shared.stop != nil {
		if err := shared.stop(); err != nil {
			_, _ = os.Stderr.WriteString("stop the shared cluster: " + err.Error() + "\n")
			code = 1
		}
	}
	os.Exit(code)
}

// cluster is a running kubelab.
type cluster struct {
	client     kubernetes.Interface
	rest       *rest.Config
	kubeconfig string
	dir        string
	cmd        *exec.Cmd
	ended      chan error
}

// launch starts a kubelab process and waits until it reports that it is ready.
func launch(ctx context.Context, dir string, flags ...string) (*cluster, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, append([]string{"up", "--data-dir", dir}, flags...)...)
	cmd.Env = append(os.Environ(), asKubelab+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	logFile := filepath.Join(dir, "kubelab.log")
	log, err := os.Create(logFile)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	l := &cluster{dir: dir, cmd: cmd, ended: make(chan error, 1)}
	said, err := io.ReadAll(io.LimitReader(&lineReader{r: out}, 4096))
	l.kubeconfig = strings.TrimSpace(string(said))
	go func() { l.ended <- cmd.Wait() }()
	if err == nil && l.kubeconfig == "" {
		err = errors.Join(errors.New("it ended before it was ready"), <-l.ended, errors.New(lastLines(logFile)))
	}
	if err != nil {
		return nil, err
	}
	if l.rest, err = clientcmd.BuildConfigFromFlags("", l.kubeconfig); err != nil {
		return nil, err
	}
	l.rest.QPS = -1
	l.client, err = kubernetes.NewForConfig(l.rest)
	return l, err
}

// lastLines returns the last lines of a cluster's log.
func lastLines(path string) string {
	b, _ := os.ReadFile(path)
	return string(b[max(0, len(b)-4000):])
}

// lineReader ends after the first line.
type lineReader struct {
	r    io.Reader
	done bool
}

func (l *lineReader) Read(p []byte) (int, error) {
	if l.done {
		return 0, io.EOF
	}
	n, err := l.r.Read(p)
	if i := bytes.IndexByte(p[:n], '\n'); i >= 0 {
		n, l.done = i, true
	}
	return n, err
}

func (l *cluster) stop() error {
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case err := <-l.ended:
		return err
	case <-time.After(time.Minute):
		return errors.Join(errors.New("it still runs a minute after SIGTERM"), l.cmd.Process.Kill())
	}
}

// component returns the pid of a component.
func (l *cluster) component(t *testing.T, name string) int {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(l.dir, "run", name+".json"))
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(content), `"pid":`)
	require.True(t, ok, string(content))
	digits, _, _ := strings.Cut(rest, ",")
	pid, err := strconv.Atoi(digits)
	require.NoError(t, err)
	return pid
}

// shared is the cluster of most tests. Each test uses its own namespace. TestMain stops the cluster.
var shared struct {
	start   sync.Once
	cluster *cluster
	err     error
	stop    func() error
}

func sharedCluster(t *testing.T) *cluster {
	t.Helper()
	shared.start.Do(func() {
		dir, err := os.MkdirTemp("", "kubelab-test-") //nolint:usetesting // the directory outlives the test that creates it
		if err != nil {
			shared.err = err
			return
		}
		shared.cluster, shared.err = launch(context.Background(), dir, "--cidr=127.91.0.0/16",
			"--node-grace=5s", "--evict-after=1s", "--crash-backoff=100ms",
			"--group=name=h100,nodes=3,zones=a|b|c,gpu=nvidia.com/gpu=8,gpu-product=NVIDIA-H100-80GB-HBM3",
			"--group=name=l4,nodes=1,gpu=nvidia.com/gpu=2,gpu-product=NVIDIA-L4,spot=true,taint=nvidia.com/gpu=present:NoSchedule,label=team=search",
			"--group=name=lossy,nodes=2,cpu=8,taint=test/lossy:NoSchedule")
		shared.stop = func() error {
			if shared.cluster == nil {
				return os.RemoveAll(dir)
			}
			return errors.Join(shared.cluster.stop(), os.RemoveAll(dir))
		}
	})
	require.NoError(t, shared.err)
	return shared.cluster
}

// namespace creates a namespace for one test.
func (l *cluster) namespace(t *testing.T, labels map[string]string) string {
	t.Helper()
	ns, err := l.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Labels: labels}}, metav1.CreateOptions{})
	require.NoError(t, err)
	eventually(t, func(ctx context.Context) error {
		_, err := l.client.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return ns.Name
}

// eventually waits until check returns nil. The limit is a minute, because the machine may run other work.
func eventually(t *testing.T, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			require.NoError(t, err, "after a minute")
		case <-tick.C:
		}
	}
}

func httpGet(ctx context.Context, url string) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}
