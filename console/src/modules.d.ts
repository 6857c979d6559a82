/** The bundler takes style sheets out of the scripts that import them. */
declare module "*.css";
