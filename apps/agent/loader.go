package agent

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/alecthomas/kong"

	"github.com/windlass-run/windlass/apps/agent/internal/podloader"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/pkg/telemetry"
)

// IsLoader reports whether the program was started in the pod of a server of models, to fetch the files of models. See
// --loader-image. Main does this.
func IsLoader(args []string) bool { return len(args) > 1 && args[1] == render.LoaderCommand }

// loaderFlags are the flags of the program when IsLoader.
type loaderFlags struct {
	Models modelFlags `embed:"" envprefix:"WINDLASS_MODEL_"`

	Address   string `help:"Address of the pod." required:""`
	Port      int    `help:"Port on which the region's agent calls this program." required:""`
	Dir       string `help:"Directory of the volume that the server sees, too." required:""`
	Pod       string `help:"UID of the pod." required:""`
	LogFormat string `help:"${enum}." enum:"json,text" default:"json"`
	LogLevel  string `help:"${enum}." enum:"debug,info,warn,error" default:"info"`
}

// loaderHeader limits how long a caller may take to send the header of a request.
const loaderHeader = 10 * time.Second

// fetchForServer fetches files of models for the server of a pod, until ctx ends.
func fetchForServer(ctx context.Context, args []string) error {
	var f loaderFlags
	parser, err := kong.New(&f, kong.Name("windlass-agent "+render.LoaderCommand), kong.Description("Fetches files of models for the server in the same pod."))
	if err != nil {
		return fmt.Errorf("flags: %w", err)
	}
	if _, err := parser.Parse(args); err != nil {
		return fmt.Errorf("%w (try --help)", err)
	}
	log, err := telemetry.NewLogger(os.Stderr, f.LogFormat, f.LogLevel)
	if err != nil {
		return err
	}
	key, err := hex.DecodeString(os.Getenv(render.LoaderKeyEnv))
	if err != nil {
		return fmt.Errorf("%s: it is not hexadecimal", render.LoaderKeyEnv)
	}
	if net.ParseIP(f.Address) == nil {
		return errors.New("--address: use the pod's address, status.podIP")
	}
	store, err := f.Models.storeConfig(f.Dir)
	if err != nil {
		return err
	}
	store.Log = log
	l, err := podloader.New(podloader.Config{Pod: f.Pod, Key: key, Store: store})
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(f.Address, strconv.Itoa(f.Port)))
	if err != nil {
		return fmt.Errorf("--port=%d: use one that the server leaves free: %w", f.Port, err)
	}
	go l.Run(ctx)
	// Requests end with the program, and their callers ask again.
	s := &http.Server{Handler: l, ReadHeaderTimeout: loaderHeader}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}
