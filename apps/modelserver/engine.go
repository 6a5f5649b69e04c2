package modelserver

import (
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// engine is an inference engine whose command line, endpoints and metrics the
// server has. Each is one file, engine_NAME.go, a function of metrics.go, and one
// entry of engines.
type engine struct {
	name string

	// program is the engine's name in its messages, usage the line before them.
	program, usage string
	// images are the repositories whose containers run the engine, entrypoint is theirs.
	images     []string
	entrypoint []string
	// match returns the words after the engine's program, or false for another
	// program's command line.
	match func(words []string) (rest []string, ok bool)
	// flags is all that the engine takes, positionals how many words without a flag.
	flags       []flag
	positionals int
	// rewrite changes the words before they are parsed; nil: it does not.
	rewrite func(p *parser, words []string) ([]string, error)
	// configure turns what was parsed into cfg, which has the values of
	// MODELSERVER_*.
	configure func(p *parser, cfg *Config, args *arguments, own ownSettings) error

	// listensWhenLoaded: connections are refused while the model is loaded.
	listensWhenLoaded bool
	// warmsUp: health is 503 for a while after the server listens.
	warmsUp bool
	// acceptsUntilIdle: after SIGTERM requests are accepted until none is left.
	acceptsUntilIdle bool
	// abrupt: requests that are cut at the end of the drain get no last word.
	abrupt bool
	// anyModel: requests may name any model, or none.
	anyModel bool
	// statusQueueFull is the answer to a request when the queue is full.
	statusQueueFull int
	// ownedBy is in the list of models.
	ownedBy string

	// guards reports whether a path needs one of the API keys.
	guards func(path string) bool
	// errorBody is the body of an answer that is not 200.
	errorBody func(*apiError) any
	// routes adds the endpoints that the other engines do not have, health included.
	routes func(s *Server, route func(method, path string, handle http.HandlerFunc))
	// metrics makes the engine's registry.
	metrics func(m measured) (recorder, *prometheus.Registry)
}

// engines are all that there are. The first is used without a command line of another.
var engines = []*engine{&echo, &vllm, &sglang}

func engineNamed(name string) *engine {
	for _, e := range engines {
		if e.name == name {
			return e
		}
	}
	return nil
}

// ownSettings is what the environment says besides the engine's command line.
type ownSettings struct {
	// given has the flags of the program's own that a MODELSERVER_* stands for.
	given  map[string]bool
	lookup func(name string) (value string, ok bool)
}

// engineOf returns the engine whose command line this is, and the words after
// its program; nil for another program's.
func engineOf(words []string) (*engine, []string) {
	for _, e := range engines {
		if e.match == nil {
			continue
		}
		if rest, ok := e.match(words); ok {
			return e, rest
		}
	}
	return nil, nil
}

// IsEngineCommand reports whether words are the command line of an engine that
// ParseArgs reads with its flags, such as vllm serve MODEL.
func IsEngineCommand(words []string) bool {
	e, _ := engineOf(words)
	return e != nil
}

// ImageEntrypoint returns the entrypoint of an engine's published image, nil for
// other images.
func ImageEntrypoint(image string) []string {
	repository, _, _ := strings.Cut(image, "@")
	if colon := strings.LastIndexByte(repository, ':'); colon > strings.LastIndexByte(repository, '/') {
		repository = repository[:colon]
	}
	for _, e := range engines {
		for _, known := range e.images {
			if repository == known || strings.HasSuffix(repository, "/"+known) {
				return slices.Clone(e.entrypoint)
			}
		}
	}
	return nil
}

// pythonModule returns the words after python -m MODULE.
func pythonModule(words []string, module string) ([]string, bool) {
	if len(words) >= 3 && strings.HasPrefix(path.Base(words[0]), "python") && words[1] == "-m" && words[2] == module {
		return words[3:], true
	}
	return nil, false
}

// parse reads the words after the engine's program into cfg.
func (e *engine) parse(cfg *Config, words []string, own ownSettings) error {
	p := newParser(e)
	if e.rewrite != nil {
		var err error
		if words, err = e.rewrite(p, words); err != nil {
			return err
		}
	}
	args, err := p.parse(words)
	if err != nil {
		return err
	}
	if args.has("--config") {
		return &CommandLineError{Message: p.program + ": error: modelserver reads no file of flags: give them on the command line instead of --config", Code: 1}
	}
	cfg.Engine.Name = e.name
	return e.configure(p, cfg, args, own)
}

// measured is what the metrics of an engine read.
type measured struct {
	cfg   *Config
	queue *admission
	cache *cache
}

// running is how many requests hold a slot.
func (m measured) running() float64 {
	n, _ := m.queue.load()
	return float64(n)
}

// waiting is how many requests wait for a slot.
func (m measured) waiting() float64 {
	_, n := m.queue.load()
	return float64(n)
}

// recorder counts what the server does, under an engine's names. All methods
// are for concurrent use.
type recorder interface {
	// admitted: a request has a slot, after so long.
	admitted(waited time.Duration)
	// prefilled: its prompt was taken.
	prefilled(tokens int)
	// token: its nth token, from 0, came so long after the request and after the
	// token before.
	token(n int, total, since time.Duration)
	finished(request)
	// answered: an inference request got its status.
	answered(path string, status int)
}

// request is one that held a slot.
type request struct {
	finish                       string
	prompt, generated, limit     int
	total, queued, first, decode time.Duration
}
