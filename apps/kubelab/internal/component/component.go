// Package component holds the programs of a Kubernetes control plane inside the
// kubelab binary.
//
// kubelab starts each of them as a child process, by executing itself with the component's name as the first
// argument. They are not goroutines, because Kubernetes' components keep feature gates, metrics and loggers
// in globals. Besides, a process can be killed as in a real cluster.
package component

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kwokconfig "sigs.k8s.io/kwok/pkg/config"
	kwok "sigs.k8s.io/kwok/pkg/kwok/cmd"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/kwok/pkg/utils/signals"
)

// Names of the components, as in other clusters.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	KWOK              = "kwok"
)

// Run runs the component that args name: args[0] is this program, args[1] the component and the rest its
// flags. It returns when the component ends. ok is false if args name no component.
func Run(args []string) (code int, ok bool) {
	if len(args) < 2 {
		return 0, false
	}
	switch args[1] {
	case Etcd:
		etcdmain.Main(args[1:])
		return 0, true
	case APIServer:
		allowLoopbackEndpoints()
		return runCobra(apiserver.NewAPIServerCommand(), args), true
	case ControllerManager:
		return runCobra(controllermanager.NewControllerManagerCommand(), args), true
	case Scheduler:
		return runCobra(scheduler.NewSchedulerCommand(), args), true
	case KWOK:
		return runKWOK(args), true
	}
	return 0, false
}

func runCobra(cmd *cobra.Command, args []string) int {
	// The components' usage text and completion read os.Args.
	os.Args = args[1:]
	cmd.SetArgs(args[2:])
	return cli.Run(cmd)
}

// runKWOK does what the main function of KWOK's controller does.
func runKWOK(args []string) int {
	os.Args = args[1:]
	// Cobra adds the process's global flags to every command. Kubernetes' packages define a global --version
	// that collides with cobra's.
	pflag.CommandLine = pflag.NewFlagSet(args[1], pflag.ContinueOnError)
	flags := pflag.NewFlagSet("global", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.Usage = func() {}

	ctx, _ := kwoklog.InitFlags(signals.SetupSignalContext(), flags)
	ctx, err := kwokconfig.InitFlags(ctx, flags)
	if err == nil {
		err = executeKWOK(ctx, flags, args[2:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kwok:", err)
		return 1
	}
	return 0
}

func executeKWOK(ctx context.Context, flags *pflag.FlagSet, args []string) error {
	cmd := kwok.NewCommand(ctx)
	cmd.PersistentFlags().AddFlagSet(flags)
	cmd.SetArgs(args)
	return cmd.ExecuteContext(ctx)
}
