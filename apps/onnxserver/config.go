package onnxserver

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"time"
)

// Config configures a Server. A field's comment names its default, unless the default is zero. The tags are for the
// command line.
type Config struct {
	// Host is the address to bind. Default: 127.0.0.1.
	Host string `default:"127.0.0.1" help:"Address to listen on (0.0.0.0 in a container)."`
	// Port is the port to bind, for HTTP and gRPC. 0 means any free port.
	Port int `default:"8000" env:"ONNXSERVER_PORT,PORT" help:"Port to listen on, for HTTP and for gRPC without TLS."`
	// Listener replaces Host and Port if it is set. Run closes it.
	Listener net.Listener `kong:"-"`
	// Library is the shared library of ONNX Runtime, for the program.
	Library string `help:"Shared library of ONNX Runtime. Default: libonnxruntime.so.1 in the folder of the program, or its name on other systems."`
	// ModelRepository is the folder with a folder for each model.
	ModelRepository string `required:"" help:"Folder that has a folder for each model. None is loaded at the start."`
	// ModelMemoryMiB limits the memory of all loaded models. 0 means no limit.
	ModelMemoryMiB int `name:"model-memory-mib" default:"0" help:"Memory of all loaded models; 0 for no limit."`
	// Threads is the number of threads of one inference. Default: 1.
	Threads int `default:"1" help:"Threads of one inference."`
	// Concurrency is the maximum number of inferences at once. Default: the number of processors.
	Concurrency int `default:"0" help:"Inferences that run at once; 0 for the number of processors."`
	// Queue is the maximum number of requests that wait for a slot. Default: 64.
	Queue int `default:"64" help:"Requests that may wait. Further requests are refused with 429."`
	// MaxBodyBytes is the maximum size of a request's body. Default: 64 MiB.
	MaxBodyBytes int64 `default:"67108864" help:"Largest request body, in bytes."`
	// RequestTimeout limits an inference with its wait. Default: 30 s.
	RequestTimeout time.Duration `default:"30s" help:"Maximum time of one inference, including its wait."`
	// DrainTimeout is the time after the end of Run's context in which requests may finish. Default: 30 s.
	DrainTimeout time.Duration `default:"30s" help:"Time after SIGTERM in which running requests may finish."`
	// LogFormat is the format of NewLogger, text or json. Default: text.
	LogFormat string `default:"text" enum:"text,json" help:"Format of the log on standard error: ${enum}."`
	// Logger receives the server's log. Nil discards it.
	Logger *slog.Logger `kong:"-"`
	// Engine runs models.
	Engine Engine `kong:"-"`
}

// About describes the program, for its help and for the reference.
const About = "Server of many models, which it loads and unloads while it runs, with ONNX Runtime. It has the Open Inference Protocol over HTTP and gRPC."

// maxMemoryMiB is the largest memory of models: 1 TiB.
const maxMemoryMiB = 1 << 20

func (c Config) withDefaults() Config {
	c.Host = cmp.Or(c.Host, "127.0.0.1")
	c.Threads = cmp.Or(c.Threads, 1)
	c.Concurrency = cmp.Or(c.Concurrency, runtime.GOMAXPROCS(0))
	c.Queue = cmp.Or(c.Queue, 64)
	c.MaxBodyBytes = cmp.Or(c.MaxBodyBytes, 64<<20)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, 30*time.Second)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 30*time.Second)
	c.LogFormat = cmp.Or(c.LogFormat, "text")
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// NewLogger returns a logger for the field Logger.
func (c Config) NewLogger(w io.Writer) *slog.Logger {
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, nil))
	}
	return slog.New(slog.NewTextHandler(w, nil))
}

// Validate returns an error for every field that is out of range, with the name of its flag. Kong calls it for the
// command line, and New calls it for all other callers.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(c.Port < 0 || c.Port > 65535, "--port must be 0 to 65535, not %d", c.Port)
	refuse(c.ModelRepository == "", "--model-repository is missing")
	refuse(c.ModelMemoryMiB < 0 || c.ModelMemoryMiB > maxMemoryMiB, "--model-memory-mib must be 0 to %d, not %d", maxMemoryMiB, c.ModelMemoryMiB)
	refuse(c.Threads < 1 || c.Threads > 1024, "--threads must be 1 to 1024, not %d", c.Threads)
	refuse(c.Concurrency < 1 || c.Concurrency > 1024, "--concurrency must be 0 to 1024, not %d", c.Concurrency)
	refuse(c.Queue < 1, "--queue must be at least 1, not %d", c.Queue)
	refuse(c.MaxBodyBytes < 1 || c.MaxBodyBytes > 1<<31, "--max-body-bytes must be 1 to %d, not %d", 1<<31, c.MaxBodyBytes)
	refuse(c.RequestTimeout < 0, "--request-timeout must not be negative")
	refuse(c.DrainTimeout < 0, "--drain-timeout must not be negative")
	refuse(c.LogFormat != "text" && c.LogFormat != "json", "--log-format must be text or json, not %q", c.LogFormat)
	return errors.Join(errs...)
}
