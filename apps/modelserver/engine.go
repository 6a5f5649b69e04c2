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

// parseFlags reads the words after the engine's program into cfg.
func (e *engine) parseFlags(cfg *Config, words []string, own ownSettings) error {
	p := newParser(e)
	if e.rewrite != nil {
		var err error
		if words, err = e.rewrite(p, words); err != nil {
			return err
		}
	}
	args, err := p.parseWords(words)
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

// runningRequests returns how many requests hold a slot.
func (m measured) runningRequests() float64 {
	n, _ := m.queue.countRequests()
	return float64(n)
}

// waitingRequests returns how many requests wait for a slot.
func (m measured) waitingRequests() float64 {
	_, n := m.queue.countRequests()
	return float64(n)
}

// recorder counts what the server does, under an engine's names. All methods
// are for concurrent use.
type recorder interface {
	// recordAdmission counts a request that got a slot after waiting for it.
	recordAdmission(waited time.Duration)
	// recordPrefill counts the tokens of a request's prompt.
	recordPrefill(tokens int)
	// recordToken counts a request's nth token, from 0. It came total after the request and since
	// after the token before.
	recordToken(n int, total, since time.Duration)
	// recordEnd counts a request that held a slot and has ended.
	recordEnd(request)
	// recordStatus counts the HTTP status of an inference request.
	recordStatus(path string, status int)
}

// request is one that held a slot.
type request struct {
	finish                       string
	prompt, generated, limit     int
	total, queued, first, decode time.Duration
}
