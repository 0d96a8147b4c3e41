package catalog

import (
	"context"
	"database/sql"
	"strings"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/policy"
)

// Where the tier of a tool comes from.
const (
	tierPlatform = "platform" // the spec fixes it
	tierAssigned = "assigned" // by an admin
	tierClass    = "class"    // nobody assigned one: by the action class
)

// tierOf is the tier of a tool and where it comes from (SC-2). The tools of the work platform have theirs by their name, and
// only in a built-in server: a foreign server may call its tools what it likes.
func tierOf(transport, name, stored string, class policy.Class) (policy.Tier, string) {
	if transport == TransportBuiltin {
		if t, ok := policy.PlatformTier(name); ok {
			return t, tierPlatform
		}
	}
	if stored == "" {
		return policy.TierOf(class), tierClass
	}
	t, _ := policy.ParseTier(stored)
	return t, tierAssigned
}

// confirmFixed: calls need the confirmation whatever an admin says.
func confirmFixed(transport, name string) bool {
	return transport == TransportBuiltin && policy.PlatformConfirms(name)
}

// exposure orders tiers by who gets them without asking: the baseline every agent, read also a task without an agent.
func exposure(t policy.Tier) int {
	switch t {
	case policy.TierBaseline:
		return 2
	case policy.TierRead:
		return 1
	}
	return 0
}

// ToolSettings is what an admin may set of a tool besides its rule; nil leaves it as it is.
type ToolSettings struct {
	Tier             *string `json:"tier"` // a word of policy.Tiers; empty: by the action class
	Confirm          *bool   `json:"confirm"`
	ConfirmLoosening bool    `json:"confirm_loosening"`
}

// SetTool changes the settings of a tool. What gives it to more callers, or lifts the confirmation, is a loosening and
// must be confirmed, as with rules.
func (c *Catalog) SetTool(ctx context.Context, ws, serverID, toolID string, in ToolSettings) (ToolInfo, error) {
	if in.Tier == nil && in.Confirm == nil {
		return ToolInfo{}, fault.New(fault.InvalidParams, "give tier, confirm or both")
	}
	return c.changeTool(ctx, ws, serverID, toolID, func(tx *sql.Tx, s Server, t ToolInfo) error {
		if in.Tier != nil {
			if err := setTier(ctx, tx, s, t, *in.Tier, in.ConfirmLoosening); err != nil {
				return err
			}
		}
		if in.Confirm == nil || *in.Confirm == t.Confirm {
			return nil
		}
		if confirmFixed(s.Transport, t.Name) {
			return fault.New(fault.Conflict, "calls of this tool of the work platform always need confirmation").Why("mcp_confirm_fixed")
		}
		if !*in.Confirm && !in.ConfirmLoosening {
			return loosening("calls would run without the two-step confirmation", "confirm")
		}
		_, err := tx.ExecContext(ctx, `UPDATE tool SET confirm = $1 WHERE id = $2`, *in.Confirm, t.ID)
		return err
	})
}

func setTier(ctx context.Context, tx *sql.Tx, s Server, t ToolInfo, word string, confirmed bool) error {
	if _, ok := policy.ParseTier(word); !ok && word != "" {
		return fault.New(fault.InvalidParams, "no tier %q; possible: %s", word, strings.Join(policy.Tiers(), ", ")).Why("mcp_tier_invalid")
	}
	if t.TierSource == tierPlatform {
		return fault.New(fault.Conflict, "the tier of a tool of the work platform is fixed").Why("mcp_tier_fixed")
	}
	had, _ := policy.ParseTier(t.Tier)
	will, _ := tierOf(s.Transport, t.Name, word, policy.Class(t.Action))
	if exposure(will) > exposure(had) && !confirmed {
		return loosening("tier "+will.String()+" gives the tool to callers that tier "+t.Tier+" does not", t.Tier)
	}
	_, err := tx.ExecContext(ctx, `UPDATE tool SET tier = $1 WHERE id = $2`, word, t.ID)
	return err
}

func loosening(what, current string) error {
	return fault.New(fault.Conflict, "%s, which reduces protection; confirm it with confirm_loosening", what).
		Why("mcp_loosening_confirmation_required").With("current", current)
}
