package modelserver

import (
	"net/http"
	"strings"
)

func (s *Server) handleChat(w http.ResponseWriter, r *http.Request) {
	s.serveInference(w, r, func() (*sampling, plan, shape, *apiError) {
		var req chatRequest
		if problem := decodeBody(w, r, s.cfg.MaxBodyBytes, &req); problem != nil {
			return nil, plan{}, shape{}, problem
		}
		if len(req.Messages) == 0 {
			return nil, plan{}, shape{}, badRequest("messages", "messages is empty: send at least one message")
		}
		var prompt []string
		promptTokens, echo := 0, string(req.Messages[len(req.Messages)-1].Content)
		for i, m := range req.Messages {
			switch m.Role {
			case "user":
				echo = string(m.Content)
			case "system", "developer", "assistant", "tool":
			default:
				return nil, plan{}, shape{}, badRequest("messages", "messages[%d].role must be system, developer, user, assistant or tool, not %q", i, m.Role)
			}
			promptTokens += countTokens(string(m.Content))
			prompt = append(prompt, strings.Fields(string(m.Content))...)
		}
		limit, problem := s.checkSampling(&req.sampling, promptTokens)
		if problem != nil {
			return nil, plan{}, shape{}, problem
		}
		p := planEcho(promptTokens, echo, limit, req.IgnoreEOS, req.Stop)
		p.prompt = prompt
		return &req.sampling, p, chatShape, nil
	})
}

var chatShape = shape{
	idPrefix:    "chatcmpl-",
	object:      "chat.completion",
	chunkObject: "chat.completion.chunk",
	whole: func(text string) choice {
		return choice{Message: &message{Role: "assistant", Content: &text}}
	},
	opening: func() (choice, bool) {
		empty := ""
		return choice{Delta: &message{Role: "assistant", Content: &empty}}, true
	},
	chunk: func(token string) choice { return choice{Delta: &message{Content: &token}} },
	last:  func() choice { return choice{Delta: &message{}} },
}
