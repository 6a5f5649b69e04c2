package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/alecthomas/kong"

	"github.com/windlass-run/windlass/apps/agent/internal/probe"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/pkg/healthcheck"
)

// IsHealthCheck reports whether the program was started in a container next to an app, to make the
// app's health check. See --health-image. Main runs the check.
func IsHealthCheck(args []string) bool { return len(args) > 1 && args[1] == render.HealthCommand }

// healthFlags are the flags of the program when IsHealthCheck.
type healthFlags struct {
	Address    string        `help:"Address of the pod, for listening and for calling the app." required:""`
	Port       int           `help:"Port on which the kubelet calls this program over gRPC." required:""`
	TargetPort int           `help:"Port of the app, to which the check is made." required:""`
	Method     string        `help:"${enum}." enum:"GET,HEAD" default:"GET"`
	Path       string        `help:"Path of the check." default:"/health"`
	Code       []string      `help:"Status code that passes, or a range. Can be repeated. Default: 200 to 399."`
	Margin     time.Duration `help:"How long before the kubelet's timeout the check gives up." default:"1s"`
}

// answerHealth makes a health check for each request, until ctx ends.
func answerHealth(ctx context.Context, args []string) error {
	var f healthFlags
	parser, err := kong.New(&f, kong.Name("windlass-agent "+render.HealthCommand),
		kong.Description("Makes an app's health check for the kubelet, which asks over gRPC."))
	if err != nil {
		return fmt.Errorf("flags: %w", err)
	}
	if _, err := parser.Parse(args); err != nil {
		return fmt.Errorf("%w (try --help)", err)
	}
	codes, err := healthcheck.ParseCodes(f.Code)
	if err != nil {
		return fmt.Errorf("--code=%w", err)
	}
	if net.ParseIP(f.Address) == nil {
		return errors.New("--address: use the pod's address, status.podIP")
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(f.Address, strconv.Itoa(f.Port)))
	if err != nil {
		return fmt.Errorf("--port=%d: use one that the app leaves free: %w", f.Port, err)
	}
	return probe.Run(ctx, l, probe.Config{
		Check:   healthcheck.Check{Method: f.Method, Path: f.Path, Codes: codes, Timeout: healthcheck.DefaultTimeout, Agent: "windlass-agent"},
		Address: net.JoinHostPort(f.Address, strconv.Itoa(f.TargetPort)), Margin: f.Margin,
	})
}
