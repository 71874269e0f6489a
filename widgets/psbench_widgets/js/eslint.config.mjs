import js from "@eslint/js";
import globals from "globals";

const RULES = {
  eqeqeq: "error",
  "prefer-const": "error",
  "no-unused-vars": ["error", { varsIgnorePattern: "^_$", argsIgnorePattern: "^_" }],
};

export default [
  js.configs.recommended,
  { languageOptions: { globals: globals.browser }, rules: RULES },
  { files: ["*.mjs"], languageOptions: { globals: globals.node } },
];
