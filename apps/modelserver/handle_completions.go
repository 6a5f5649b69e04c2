package modelserver

import (
	"net/http"
	"strings"
)

func (s *Server) handleCompletions(w http.ResponseWriter, r *http.Request) {
	s.serveInference(w, r, func() (*sampling, plan, shape, *apiError) {
		var req completionRequest
		if problem := decodeBody(w, r, s.cfg.MaxBodyBytes, &req); problem != nil {
			return nil, plan{}, shape{}, problem
		}
		if !req.Prompt.set {
			return nil, plan{}, shape{}, badRequest("prompt", "prompt is missing")
		}
		promptTokens := countTokens(req.Prompt.text)
		limit, problem := s.checkSampling(&req.sampling, promptTokens)
		if problem != nil {
			return nil, plan{}, shape{}, problem
		}
		p := planEcho(promptTokens, req.Prompt.text, limit, req.IgnoreEOS, req.Stop)
		p.prompt = strings.Fields(req.Prompt.text)
		return &req.sampling, p, completionShape, nil
	})
}

var completionShape = shape{
	idPrefix:    "cmpl-",
	object:      "text_completion",
	chunkObject: "text_completion",
	whole:       func(text string) choice { return choice{Text: &text} },
	opening:     func() (choice, bool) { return choice{}, false },
	chunk:       func(token string) choice { return choice{Text: &token} },
	last: func() choice {
		empty := ""
		return choice{Text: &empty}
	},
}
